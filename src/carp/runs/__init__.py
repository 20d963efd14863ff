"""What a run leaves on disk and how it resumes: folder, checkpoints, logs, and the loop that all training shares."""
