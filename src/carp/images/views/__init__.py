"""The views of an image: what is random about them, and two ways to render them."""
