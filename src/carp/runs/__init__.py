"""What a run leaves on disk and how it continues: folder, checkpoints, logs, and the loop that all training shares."""
