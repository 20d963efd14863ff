"""Results as tables: on the screen, as text, as an image."""
