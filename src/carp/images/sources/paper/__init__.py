"""The datasets of the paper: their table, how they are stored, and `dataset:NAME:SPLIT`."""
