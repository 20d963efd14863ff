"""One file per command, each with one function that Python code can call too."""
