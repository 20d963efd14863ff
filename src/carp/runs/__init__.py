"""The files of a run and how it resumes: folder, checkpoints, logs, and the loop that all training shares."""
