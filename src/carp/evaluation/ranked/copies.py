"""Copy detection: is the original of an altered image the first that is found?

The protocol is that of INRIA Copydays (Douze et al. 2009); docs/protocols.md has it number by number. It runs on
Copydays itself and on sets that `carp data attack` made.

Shapes: Q altered images, M originals, then distractors, F features.
"""

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Features, check_features
from carp.evaluation.ranked.ranking import Judged, average_precision, ranked, ranks_of_positives
from carp.evaluation.ranked.whitening import Whitening
from carp.evaluation.result import Result
from carp.files.regular import read_text
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.inspect.attacks import MANIFEST

SIDE = 320  # pixels: images are stretched to a square
DEPTH = 20  # results a query that count
_ORIGINALS = "original"
_BLOCKS = {"strong": "strong", "jpegqual": "jpeg", "jpeg": "jpeg", "crops": "crop", "crop": "crop"}
_PREFIX = 4  # digits of a name in Copydays that an image and its copies share
_NONE = np.empty(0, dtype=np.int64)


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
    """What lies in a folder: Copydays as published, or a set that `carp data attack` made."""
    if (folder / MANIFEST).is_file():
        return _read_manifest(folder)
    if (folder / _ORIGINALS).is_dir():
        return _read_copydays(folder)
    raise DataError(
        f"{folder} holds no copies: give the folder of Copydays (with '{_ORIGINALS}' and 'strong'), or one that "
        "`carp data attack` made."
    )


def _read_copydays(folder: Path) -> CopySet:
    """`original`, `strong`, `jpegqual/3` …, `crops/10` …: those that are there; the first four digits are common."""
    originals = _images(folder / _ORIGINALS)
    places: dict[str, int] = {}
    for place, name in enumerate(originals):
        if places.setdefault(name[:_PREFIX], place) != place:
            raise DataError(f"{folder / _ORIGINALS} has two originals that begin with '{name[:_PREFIX]}'.")
    copies = []
    for block, attack in _BLOCKS.items():
        root = folder / block
        if not root.is_dir():
            continue
        inner = sorted((p for p in root.iterdir() if p.is_dir() and p.name.isdecimal()), key=lambda p: int(p.name))
        for path, strength in [(root, None)] if attack == "strong" else [(p, float(p.name)) for p in inner]:
            for name in _images(path):
                if name[:_PREFIX] not in places:
                    raise DataError(f"{path / name} has no original: none begins with '{name[:_PREFIX]}'.")
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
        raise DataError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is no manifest of copies ({reason}). `carp data attack` writes it.") from error
    if not originals or not copies:
        raise DataError(f"{path} names {len(originals)} originals and {len(copies)} copies; both are needed.")
    return CopySet(folder.name, originals, copies)


def _copy(entry: dict[str, Any], places: dict[str, int]) -> Copy:
    strength = entry.get("strength")
    attack = str(entry["attack"])
    if not re.fullmatch(r"[a-z][a-z0-9-]*", attack):
        raise ValueError(f"'{attack}' is no name of an attack")
    original = places[entry["original"]]
    return Copy(str(entry["name"]), original, attack, None if strength is None else float(strength))


def copy_detection(
    queries: Features,
    originals: Features,
    copies: CopySet,
    *,
    distractors: Features | None = None,
    whitening: Whitening | None = None,
    depth: int | None = DEPTH,
) -> Result:
    """Search the originals for every altered image.

    Args:
        queries: Features [Q, F] of `copies.copies`.
        originals: Features [M, F] of `copies.originals`.
        copies: Which image is a copy of which.
        distractors: Features of further images that are searched and are no originals.
        whitening: Applied to all, if given.
        depth: Results of a query that count, 20 in the script that the paper follows; None is all.

    Returns:
        `map_ATTACK` for every attack, `map_ATTACK_STRENGTH` where there are several strengths, `map` over all altered
        images, and `micro_ap`: the area below the precision-recall curve of all first results, ordered by similarity.
    """
    if depth is not None and depth < 1:
        raise ConfigError(f"depth must be at least 1, received {depth}.")
    named = {"query": queries, "original": originals} | ({} if distractors is None else {"distractor": distractors})
    check_features(**named)
    for what, features, wanted in (("copies", queries, copies.copies), ("originals", originals, copies.originals)):
        if len(features) != len(wanted):
            raise DataError(f"{copies.name} has {len(wanted):,} {what}, but there are features of {len(features):,}.")
    database = originals if distractors is None else np.concatenate([originals, distractors])
    if whitening is not None:
        queries, database = whitening.apply(queries), whitening.apply(database)
    precisions, firsts = np.empty(len(queries)), list[tuple[float, bool]]()
    for found in ranked(queries, database):
        own = copies.copies[found.query].original
        ranks = ranks_of_positives(found.order, Judged(np.array([own]), _NONE))
        precisions[found.query] = average_precision(ranks if depth is None else ranks[ranks < depth], 1)
        firsts.append((found.nearest, int(found.order[0]) == own))
    values = _means(copies, precisions) | {"micro_ap": micro_average_precision(firsts)}
    settings = {
        "originals": len(originals),
        "copies": len(queries),
        "distractors": 0 if distractors is None else len(distractors),
        "whitening": "off" if whitening is None else whitening.dimensions,
        "depth": depth or "all",
    }
    return Result("copy-detection", values, settings)


def _means(copies: CopySet, precisions: np.ndarray) -> dict[str, float]:
    """Mean average precision of every attack, of its strengths, and over all."""
    groups: dict[str, list[int]] = defaultdict(list)
    strengths: dict[str, dict[float | None, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, copy in enumerate(copies.copies):
        groups[copy.attack].append(place)
        strengths[copy.attack][copy.strength].append(place)
    values = {"map": float(precisions.mean())}
    for attack, members in groups.items():
        values[f"map_{attack}"] = float(precisions[members].mean())
        if len(strengths[attack]) > 1:
            for strength, part in sorted(strengths[attack].items(), key=lambda item: item[0] or 0.0):
                values[f"map_{attack}_{strength or 0:g}"] = float(precisions[part].mean())
    return values


def micro_average_precision(firsts: list[tuple[float, bool]]) -> float:
    """Precision at every right first result, all ordered by similarity, summed and divided by the number of queries.

    Among equally similar ones those that are wrong come first, so that nothing is gained by chance.
    """
    right = np.array([found for _, found in sorted(firsts, key=lambda first: (-first[0], first[1]))])
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    return float(precision[right].sum() / len(right))
