"""The interpolation of resized images. Imports nothing, so that options can list the choices quickly."""

from typing import Literal

Interpolation = Literal["bicubic", "bilinear"]
"""Both with antialiasing, as Pillow resizes."""
DEFAULT_INTERPOLATION: Interpolation = "bicubic"
