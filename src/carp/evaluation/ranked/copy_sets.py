"""Sets of altered images and their originals: INRIA Copydays, or a folder of `carp data attack`."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carp.errors import DataError
from carp.files.regular import read_text
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.inspect.attacks import MANIFEST

_ORIGINALS = "original"
_BLOCKS = {"strong": "strong", "jpegqual": "jpeg", "jpeg": "jpeg", "crops": "crop", "crop": "crop"}
_PREFIX = 4  # digits of a name in Copydays that an image and its copies share


@dataclass(frozen=True)
class Copy:
    """An altered image."""

    name: str  # path below the folder
    original: int  # place of its original among the originals
    attack: str
    strength: float | None


@dataclass(frozen=True)
class CopySet:
    """Originals, by their paths below a folder, and altered images of them."""

    name: str
    originals: tuple[str, ...]
    copies: tuple[Copy, ...]


def read_copies(folder: Path) -> CopySet:
    """Read a folder: Copydays as published, or a set that `carp data attack` wrote."""
    if (folder / MANIFEST).is_file():
        return _read_manifest(folder)
    if (folder / _ORIGINALS).is_dir():
        return _read_copydays(folder)
    raise DataError(
        f"{folder} contains no copies. Give the folder of Copydays (with '{_ORIGINALS}' and 'strong'), or one that "
        "`carp data attack` wrote."
    )


def _read_copydays(folder: Path) -> CopySet:
    """Read the folders that exist: `original`, `strong`, `jpegqual/3` … and `crops/10` …; names share four digits."""
    originals = _images(folder / _ORIGINALS)
    places: dict[str, int] = {}
    for place, name in enumerate(originals):
        if places.setdefault(name[:_PREFIX], place) != place:
            raise DataError(
                f"{folder / _ORIGINALS} has two originals that begin with '{name[:_PREFIX]}'. Remove one of them."
            )
    copies = []
    for block, attack in _BLOCKS.items():
        root = folder / block
        if not root.is_dir():
            continue
        inner = sorted((p for p in root.iterdir() if p.is_dir() and p.name.isdecimal()), key=lambda p: int(p.name))
        for path, strength in [(root, None)] if attack == "strong" else [(p, float(p.name)) for p in inner]:
            for name in _images(path):
                if name[:_PREFIX] not in places:
                    raise DataError(
                        f"{path / name} has no original: none begins with '{name[:_PREFIX]}'. Add one, "
                        "or remove the copy."
                    )
                relative = (path / name).relative_to(folder).as_posix()
                copies.append(Copy(relative, places[name[:_PREFIX]], attack, strength))
    if not copies:
        raise DataError(f"{folder} has originals but no copies: looked for {', '.join(_BLOCKS)}.")
    return CopySet(folder.name, tuple(f"{_ORIGINALS}/{name}" for name in originals), tuple(copies))


def _images(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _read_manifest(folder: Path) -> CopySet:
    path = folder / MANIFEST
    try:
        read = json.loads(read_text(path))
        originals = tuple(str(entry["name"]) for entry in read["originals"])
        places = {name: place for place, name in enumerate(originals)}
        copies = tuple(_copy(entry, places) for entry in read["copies"])
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the path.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path} is not a manifest of copies ({reason}). Give a folder that `carp data attack` wrote."
        ) from error
    if not originals or not copies:
        raise DataError(f"{path} names {len(originals)} originals and {len(copies)} copies; both are needed.")
    return CopySet(folder.name, originals, copies)


def _copy(entry: dict[str, Any], places: dict[str, int]) -> Copy:
    strength = entry.get("strength")
    attack = str(entry["attack"])
    if not re.fullmatch(r"[a-z][a-z0-9-]*", attack):
        raise ValueError(f"'{attack}' is not the name of an attack")
    original = places[entry["original"]]
    return Copy(str(entry["name"]), original, attack, None if strength is None else float(strength))
