"""The datasets of the paper: their table, how they lie on the disk, and `dataset:NAME:SPLIT`."""
