"""One command, one file, one keyword-only function that Python calls too."""
