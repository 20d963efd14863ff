"""The kinds of image sources, one file each. A new kind is a new file here: see `Source`."""
