"""A labelled set for copy detection: originals as they are stored, altered copies of them, and a manifest.

Every file is written atomically, and an existing file is not written again, so an interrupted call resumes where
it stopped. `plan.json` holds everything that determines the files; a folder is resumed only with the same plan.
"""

import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from carp.errors import DataError, UnreadableImageError
from carp.files.atomic import is_unfinished, write_atomic
from carp.files.regular import read_text
from carp.images.decoding.decode import Pixels, Stored, decode, format_of
from carp.images.inspect.attacks import ATTACKS, MANIFEST, attacked, chosen_strength
from carp.images.source import Source, read
from carp.images.sources.subset import at_random

_FORMAT = 1
_PLAN, _ORIGINALS = "plan.json", "original"
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}  # other suffixes are Pillow's names of the formats


@dataclass(frozen=True)
class AttackPlan:
    """Everything that determines the copies, apart from the images.

    Attributes:
        seed: Seed of all random choices.
        attacks: Names of attacks.
        every_strength: Whether each attack is applied at all its strengths, not at one that the seed chooses per image.
        limit: The largest number of images, chosen by the seed; None for all.
    """

    seed: int
    attacks: list[str]
    every_strength: bool
    limit: int | None


def write_attack_set(
    source: Source, folder: Path, plan: AttackPlan, progress: Callable[[int, int], None]
) -> dict[str, list[Any]]:
    """Write the set into a folder that is new, empty or started with the same plan; return the manifest's lists."""
    if len(source) < 2 and "overlay" in plan.attacks:
        raise DataError(
            f"the attack 'overlay' needs a second image, but {source.name} has only one. Choose other attacks."
        )
    chosen = at_random(source, plan.limit or len(source), seed=plan.seed).indices
    written = {
        "format": _FORMAT,
        "data": source.name,
        "fingerprint": source.fingerprint,
        "images": len(chosen),
        **{key: value for key, value in asdict(plan).items() if key != "limit"},
    }
    _take_folder(folder, written)
    lists = _write_images(source, chosen, folder, plan, progress)
    if not lists["originals"]:
        raise DataError(f"none of the {len(chosen):,} images in {source.name} can be read: give other images.")
    _guarded(folder, lambda: write_atomic(folder / MANIFEST, json.dumps({**written, **lists}, indent=1) + "\n"))
    return lists


def _write_images(
    source: Source,
    chosen: NDArray[np.int64],
    folder: Path,
    plan: AttackPlan,
    progress: Callable[[int, int], None],
) -> dict[str, list[Any]]:
    """Write the files that do not exist yet, and return the lists of the manifest."""
    lists: dict[str, list[Any]] = {"originals": [], "copies": [], "unreadable": []}
    for done, index in enumerate(map(int, chosen), 1):
        try:
            stored = source.fetch(index)
            pixels = decode(stored, source.place(index))
        except UnreadableImageError as error:
            lists["unreadable"].append(str(error))
            continue
        finally:
            progress(done, len(chosen))
        original = f"{_ORIGINALS}/{index:08d}{_suffix(stored, source.place(index))}"
        _write(folder / original, partial(_as_file, stored))
        lists["originals"].append({"name": original, "from": source.place(index)})
        alter = partial(attacked, pixels, seed=plan.seed, index=index, other=partial(_other, source, index))
        for name in plan.attacks:
            chosen_one = (chosen_strength(plan.seed, index, name),)
            for strength in ATTACKS[name].strengths if plan.every_strength else chosen_one:
                copy = f"{name}/{strength:g}/{index:08d}.jpg"
                _write(folder / copy, partial(alter, name, strength))
                lists["copies"].append({"name": copy, "original": original, "attack": name, "strength": strength})
    return lists


def _other(source: Source, index: int, draw: float) -> Pixels:
    """Return another image: the first readable one, starting at a random position."""
    first = int(draw * (len(source) - 1))
    for step in range(len(source) - 1):
        other = (index + 1 + (first + step) % (len(source) - 1)) % len(source)
        try:
            return read(source, other)
        except UnreadableImageError:
            continue
    raise DataError(f"the attack 'overlay' needs a second readable image in {source.name}. Choose other attacks.")


def _take_folder(folder: Path, plan: dict[str, Any]) -> None:
    """Make sure that the folder is new, empty, or was started with the same plan."""
    path = folder / _PLAN
    if path.is_file():
        try:
            begun = json.loads(read_text(path))
        except (OSError, ValueError, RecursionError):
            begun = {}
        if not isinstance(begun, dict):
            begun = {}
        different = next((key for key in plan if key != "data" and begun.get(key) != plan[key]), None)
        if different == "fingerprint":
            raise DataError(
                f"{folder} was started with images other than those in {plan['data']}. Give another folder."
            )
        if different is not None:
            raise DataError(
                f"{folder} was started with other settings: {different} was {begun.get(different)} and is "
                f"{plan[different]} now. Give another folder, or the same settings to resume."
            )
        return
    if folder.exists() and (not folder.is_dir() or not all(map(is_unfinished, folder.iterdir()))):
        raise DataError(
            f"{folder} is not empty, and existing files are never overwritten. Give a new folder with --out."
        )

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(plan))

    _guarded(folder, begin)


def _write(path: Path, content: Callable[[], bytes]) -> None:
    """Write a file atomically, unless it exists."""
    if path.exists():
        return
    raw = content()

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, raw)

    _guarded(path.parent, write)


def _guarded(folder: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise DataError(
            f"cannot write into {folder}: {error.strerror or error}. Give another folder, or free some space."
        ) from error


def _suffix(stored: Stored, place: str) -> str:
    if isinstance(stored, np.ndarray):
        return ".png"
    kind = format_of(stored, place)
    return _SUFFIXES.get(kind, f".{kind.lower()}")


def _as_file(stored: Stored) -> bytes:
    """Return the bytes of a file, unchanged; pixels as a PNG."""
    if isinstance(stored, bytes):
        return stored
    file = io.BytesIO()
    Image.fromarray(stored).save(file, "PNG")
    return file.getvalue()
