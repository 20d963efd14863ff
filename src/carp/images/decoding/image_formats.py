"""Which files are images: their suffixes, the formats that are decoded, and what to install for the others.

Two formats depend on the installation: AVIF needs a Pillow that was built with it, HEIC needs pillow-heif.
"""

import importlib.util
import struct
from functools import cache

from PIL import Image, features

HEIC_SUFFIXES = frozenset({".heic", ".heif"})
AVIF_SUFFIXES = frozenset({".avif"})
HAS_AVIF = "avif" in features.modules and bool(features.check("avif"))  # Pillow before 11.3 does not know the name
HAS_HEIC = importlib.util.find_spec("pillow_heif") is not None

# The formats that Pillow may recognise, whatever the file's name. The others are left out because they run a program
# (EPS), contain an image whose size differs from the header (ICO, ICNS), or cannot be decoded at all.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF")

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"}
    | (AVIF_SUFFIXES if HAS_AVIF else frozenset())
    | (HEIC_SUFFIXES if HAS_HEIC else frozenset())
)


@cache
def pillow_formats() -> tuple[str, ...]:
    """Return the formats of this installation that Pillow may recognise."""
    if HAS_HEIC:
        import pillow_heif  # noqa: PLC0415 - optional

        pillow_heif.options.DECODE_THREADS = 1  # the workers are the parallelism
        pillow_heif.register_heif_opener()
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def remedy(suffix: str) -> str:
    """Return how to make files with this suffix readable; empty if nothing helps."""
    if suffix in HEIC_SUFFIXES and not HAS_HEIC:
        return "HEIC needs `pip install 'carp-ssl[heic]'`"
    if suffix in AVIF_SUFFIXES and not HAS_AVIF:
        return "AVIF needs a newer Pillow: `pip install --upgrade pillow`"
    return ""


def missing_decoder(stored: bytes) -> str:
    """Return why an image of a known format cannot be decoded on this installation; empty for other bytes."""
    brand = stored[8:12] if stored[4:8] == b"ftyp" else b""
    if brand in {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"} and not HAS_HEIC:
        return f"it is a HEIC image: {remedy('.heic')}"
    if brand in {b"avif", b"avis"} and not HAS_AVIF:
        return f"it is an AVIF image: {remedy('.avif')}"
    return ""


def webp_size(stored: bytes) -> tuple[int, int] | None:
    """Return (width, height) of a WebP file, whose canvas Pillow allocates on opening; None for other bytes."""
    if stored[:4] != b"RIFF" or stored[8:12] != b"WEBP" or len(stored) < 30:
        return None
    kind = stored[12:16]
    if kind == b"VP8X":
        width, height = (int.from_bytes(stored[start : start + 3], "little") + 1 for start in (24, 27))
        return width, height
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", stored[26:30])
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        sizes = int.from_bytes(stored[21:25], "little")
        return (sizes & 0x3FFF) + 1, (sizes >> 14 & 0x3FFF) + 1
    return None
