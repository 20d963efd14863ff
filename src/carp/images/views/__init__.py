"""The views of an image: their random parameters, and two ways to render them."""
