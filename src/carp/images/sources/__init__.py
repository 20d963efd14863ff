"""The kinds of image sources, one file each."""
