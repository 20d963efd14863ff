"""`carp data attack`: a labelled set for copy detection, made from any images."""

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from carp.console.progress import Display
from carp.errors import ConfigError, DataError, UnreadableImageError, nearest
from carp.files.atomic import is_unfinished, write_atomic
from carp.files.outputs import check_output_file, check_output_folder
from carp.files.regular import read_text
from carp.images.decoding.decode import Pixels, Stored, decode, format_of, read_file
from carp.images.inspect.attacks import ATTACKS, MANIFEST, attacked, chosen_strength
from carp.images.open_source import open_source
from carp.images.source import Openable, Source, read
from carp.images.sources.subset import Subset, at_random
from carp.report.pages.sheet import Sheet
from carp.report.pages.thumbnails import Picture, thumbnail

FORMAT = 1
_PLAN, _ORIGINALS = "plan.json", "original"
_SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif"}  # the others are called as Pillow calls them
_ROWS_OF_SHEET = 4


@dataclass(frozen=True)
class Attacked:
    """What was written: a folder, its numbers, and where the sheet is."""

    folder: Path
    originals: int
    copies: int
    unreadable: list[str]
    sheet: Path | None


def attack(
    data: Openable,
    *,
    out: str | Path,
    attacks: Sequence[str] = (),
    every_strength: bool = False,
    limit: int | None = None,
    seed: int = 0,
    sheet: str | Path | None = None,
    quiet: bool = True,
) -> Attacked:
    """Write originals as they are stored, altered copies of them, and a manifest that says which is which.

    The same call again continues where it was interrupted. Every copy is a function of (seed, image, attack, strength).

    Args:
        data: Images of any kind that `train` takes.
        out: The folder to write: empty, new, or one that the same call began.
        attacks: Names of attacks; empty is all.
        every_strength: Every strength of every attack, not one that the seed chooses for each image.
        limit: So many images only, chosen by the seed.
        seed: Of all choices.
        sheet: Also draw a few images with their copies into this PNG.
        quiet: Show no progress.
    """
    names = _names(attacks)
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, received {limit}.")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0, received {seed}.")
    if sheet is not None and Path(sheet).suffix.lower() != ".png":
        raise ConfigError(f"the sheet is a PNG: its name must end in .png, received {sheet}.")
    check_output_folder(out)
    if sheet is not None:
        check_output_file(sheet, "--sheet")
    display, folder = Display(quiet=quiet), Path(out)
    if isinstance(data, str | Path) and folder.resolve().is_relative_to(Path(data).resolve()):
        raise DataError(f"{folder} lies inside {data}: the copies would be among the images. Give a folder beside it.")
    with display.counting("finding images", None) as progress:
        source = open_source(data, progress=progress)
    part = at_random(source, limit or len(source), seed=seed)
    if len(source) < 2 and "overlay" in names:
        raise DataError(f"the attack 'overlay' needs another image, but {source.name} has one. Name other attacks.")
    plan = {
        "format": FORMAT,
        "data": source.name,
        "fingerprint": source.fingerprint,
        "images": len(part),
        "seed": seed,
        "attacks": names,
        "every_strength": every_strength,
    }
    _take_folder(folder, plan)
    with display.counting("altering images", len(part)) as progress:
        made = _make(source, part, folder, names, progress, seed=seed, every_strength=every_strength)
    if not made["originals"]:
        raise DataError(f"none of the {len(part):,} images of {source.name} can be read.")
    _guarded(folder, lambda: write_atomic(folder / MANIFEST, json.dumps({**plan, **made}, indent=1) + "\n"))
    drawn = Path(sheet) if sheet is not None else None
    if drawn is not None:
        _draw(folder, made, drawn, f"{source.name}: {len(names)} attacks, seed {seed}")
    return Attacked(folder, len(made["originals"]), len(made["copies"]), made["unreadable"], drawn)


def _names(attacks: Iterable[str]) -> list[str]:
    names = list(attacks) or list(ATTACKS)
    for name in names:
        if name not in ATTACKS:
            raise ConfigError(f"there is no attack '{name}'.{nearest(name, ATTACKS)} Attacks: {', '.join(ATTACKS)}.")
    return [name for name in ATTACKS if name in names]


def _take_folder(folder: Path, plan: dict[str, Any]) -> None:
    """Make sure that the folder is ours: new, empty, or begun with the same plan."""
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
            raise DataError(f"{folder} was begun with other images than those of {plan['data']}. Give another folder.")
        if different is not None:
            raise DataError(
                f"{folder} was begun with other settings: {different} was {begun.get(different)} and is "
                f"{plan[different]} now. Give another folder, or the settings of before to continue."
            )
        return
    if folder.exists() and (not folder.is_dir() or not all(map(is_unfinished, folder.iterdir()))):
        raise DataError(f"{folder} is not empty, and nothing in it is overwritten. Give a new folder with --out.")

    def begin() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(plan))

    _guarded(folder, begin)


def _guarded(folder: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise DataError(f"cannot write into {folder}: {error.strerror or error}.") from error


def _make(
    source: Source,
    part: Subset,
    folder: Path,
    names: list[str],
    progress: Callable[[int, int], None],
    *,
    seed: int,
    every_strength: bool,
) -> dict[str, list[Any]]:
    """Write what is not there yet; return the lists of the manifest."""
    made: dict[str, list[Any]] = {"originals": [], "copies": [], "unreadable": []}
    for done, index in enumerate(map(int, part.indices), 1):
        try:
            stored = source.fetch(index)
            pixels = decode(stored, source.place(index))
        except UnreadableImageError as error:
            made["unreadable"].append(str(error))
            continue
        finally:
            progress(done, len(part))
        original = f"{_ORIGINALS}/{index:08d}{_suffix(stored, source.place(index))}"
        _write(folder / original, partial(_as_file, stored))
        made["originals"].append({"name": original, "from": source.place(index)})
        alter = partial(attacked, pixels, seed=seed, index=index, other=partial(_other, source, index))
        for name in names:
            for strength in ATTACKS[name].strengths if every_strength else (chosen_strength(seed, index, name),):
                copy = f"{name}/{strength:g}/{index:08d}.jpg"
                _write(folder / copy, partial(alter, name, strength))
                made["copies"].append({"name": copy, "original": original, "attack": name, "strength": strength})
    return made


def _other(source: Source, index: int, draw: float) -> Pixels:
    """An image that is not this one: the first that can be read from a drawn place on."""
    first = int(draw * (len(source) - 1))
    for step in range(len(source) - 1):
        other = (index + 1 + (first + step) % (len(source) - 1)) % len(source)
        try:
            return read(source, other)
        except UnreadableImageError:
            continue
    raise DataError(f"the attack 'overlay' needs a second image that can be read in {source.name}. Name other attacks.")


def _write(path: Path, content: Callable[[], bytes]) -> None:
    """Write a file whole or not at all; one that is there is whole."""
    if path.exists():
        return
    raw = content()

    def write() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, raw)

    _guarded(path.parent, write)


def _suffix(stored: Stored, place: str) -> str:
    if isinstance(stored, np.ndarray):
        return ".png"
    kind = format_of(stored, place)
    return _SUFFIXES.get(kind, f".{kind.lower()}")


def _as_file(stored: Stored) -> bytes:
    """The bytes of a file as they are; pixels as a PNG."""
    if isinstance(stored, bytes):
        return stored
    file = io.BytesIO()
    Image.fromarray(stored).save(file, "PNG")
    return file.getvalue()


def _draw(folder: Path, made: dict[str, list[Any]], path: Path, title: str) -> None:
    """A few originals, evenly spread, each with its copies."""
    originals = [entry["name"] for entry in made["originals"]]
    spread = np.unique(np.linspace(0, len(originals) - 1, _ROWS_OF_SHEET).round().astype(int))
    rows = []
    for original in (originals[i] for i in spread):
        copies = [entry for entry in made["copies"] if entry["original"] == original]
        cells = [_picture(folder / original, "original")]
        cells += [_picture(folder / c["name"], f"{c['attack']} {c['strength']:g}") for c in copies]
        rows += [cells[i : i + 11] for i in range(0, len(cells), 11)]
    Sheet(title, rows).write(path)


def _picture(path: Path, caption: str) -> Picture:
    return Picture(thumbnail(decode(read_file(path), str(path))), caption)
