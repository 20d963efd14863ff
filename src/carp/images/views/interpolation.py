"""How a resized image gets its pixels. Imports nothing, so that options can name the choices at once."""

from typing import Literal

Interpolation = Literal["bicubic", "bilinear"]
"""Both with antialiasing, as Pillow resizes."""
DEFAULT_INTERPOLATION: Interpolation = "bicubic"
