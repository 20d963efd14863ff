"""Tables of results: in the terminal, as text, as an image."""
