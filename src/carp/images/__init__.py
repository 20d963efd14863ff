"""Images: sources, decoding, views and loading."""
