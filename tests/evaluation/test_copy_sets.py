"""Copy detection: the layout of Copydays, manifests, and the measures against plain loops."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.errors import CarpError, DataError
from carp.evaluation.ranked.copy_scores import copy_detection, micro_average_precision
from carp.evaluation.ranked.copy_sets import Copy, CopySet, read_copies
from carp.evaluation.ranked.whitening import fit_whitening
from tests.evaluation.test_ranking import plain_average_precision


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.fixture
def copydays(tmp_path: Path) -> Path:
    """The published layout: three originals, two strong copies of the first, one of the last; two blocks each."""
    for name in ("200000", "200100", "215600"):
        touch(tmp_path / "original" / f"{name}.jpg")
        for block in ("jpegqual/3", "jpegqual/75", "crops/10", "crops/80"):
            touch(tmp_path / block / f"{name}.jpg")
    for name in ("200001", "200002", "215601"):
        touch(tmp_path / "strong" / f"{name}.jpg")
    touch(tmp_path / "strong" / "readme.txt")
    return tmp_path


def test_layout_of_copydays(copydays: Path) -> None:
    found = read_copies(copydays)
    assert found.originals == ("original/200000.jpg", "original/200100.jpg", "original/215600.jpg")
    assert [(c.name, c.original) for c in found.copies if c.attack == "strong"] == [
        ("strong/200001.jpg", 0),
        ("strong/200002.jpg", 0),
        ("strong/215601.jpg", 2),
    ]
    blocks = [(c.attack, c.strength) for c in found.copies[3:]]
    assert blocks == [(a, s) for a, s in (("jpeg", 3), ("jpeg", 75), ("crop", 10), ("crop", 80)) for _ in range(3)]


def test_mistakes_in_the_layout(copydays: Path, tmp_path: Path) -> None:
    (copydays / "strong" / "999901.jpg").touch()
    with pytest.raises(DataError, match=r"999901.jpg has no original: none begins with '9999'"):
        read_copies(copydays)
    (copydays / "original" / "200001.jpg").touch()
    with pytest.raises(DataError, match="two originals that begin with '2000'"):
        read_copies(copydays)
    with pytest.raises(DataError, match="no copies"):
        read_copies(tmp_path / "nothing")
    touch(tmp_path / "x" / "original" / "200000.jpg")
    with pytest.raises(DataError, match="has originals but no copies"):
        read_copies(tmp_path / "x")


def test_blocks_that_are_missing_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path / "original" / "200000.jpg")
    touch(tmp_path / "strong" / "200001.jpg")
    assert len(read_copies(tmp_path).copies) == 1


MANIFEST = {
    "originals": [{"name": "original/1.jpg"}, {"name": "original/2.jpg"}],
    "copies": [{"name": "blur/1/2.jpg", "original": "original/2.jpg", "attack": "blur", "strength": 1.5}],
}


def test_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST))
    found = read_copies(tmp_path)
    assert found.copies == (Copy("blur/1/2.jpg", 1, "blur", 1.5),)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        json.dumps({"originals": [], "copies": []}),
        json.dumps(MANIFEST | {"copies": [{"name": "x"}]}),
        json.dumps(MANIFEST | {"copies": [MANIFEST["copies"][0] | {"original": "original/9.jpg"}]}),  # type: ignore[dict-item]
        json.dumps(MANIFEST | {"copies": [MANIFEST["copies"][0] | {"attack": "B l"}]}),  # type: ignore[dict-item]
        json.dumps(MANIFEST | {"copies": [MANIFEST["copies"][0] | {"strength": "much"}]}),  # type: ignore[dict-item]
    ],
)
def test_manifests_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json"):
        read_copies(tmp_path)


def random_set(draw: np.random.Generator, originals: int = 30, copies: int = 120) -> CopySet:
    kinds = [("strong", None), ("jpeg", 3.0), ("jpeg", 75.0), ("blur", 0.5)]
    chosen = [kinds[i] for i in draw.integers(0, len(kinds), copies)]
    owners = draw.integers(0, originals, copies)
    return CopySet(
        "random",
        tuple(f"{i}.jpg" for i in range(originals)),
        tuple(Copy(f"c{i}", int(owners[i]), *chosen[i]) for i in range(copies)),
    )


@pytest.mark.parametrize("depth", [None, 20, 3])
@pytest.mark.parametrize("distracting", [0, 15])
def test_against_plain_loops(depth: int | None, distracting: int) -> None:
    draw = np.random.default_rng(0)
    found = random_set(draw)
    originals = draw.standard_normal((30, 10)).astype(np.float32)
    owners = np.array([copy.original for copy in found.copies])
    queries = originals[owners] + 1.5 * draw.standard_normal((120, 10)).astype(np.float32)
    others = draw.standard_normal((distracting, 10)).astype(np.float32) if distracting else None
    result = copy_detection(queries, originals, found, distractors=others, depth=depth)
    database = originals if others is None else np.concatenate([originals, others])
    unit = [x.astype(np.float64) / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, database)]
    similarity = unit[0] @ unit[1].T
    orders = np.argsort(-similarity, axis=1, kind="stable")[:, :depth].tolist()
    precisions = [plain_average_precision(o, {own}, set()) for o, own in zip(orders, owners.tolist(), strict=True)]
    kinds: dict[str, list[float]] = {}
    for copy, precision in zip(found.copies, precisions, strict=True):
        kinds.setdefault("map", []).append(precision)
        kinds.setdefault(f"map_{copy.attack}", []).append(precision)
        if copy.attack == "jpeg":  # the only attack with several strengths
            kinds.setdefault(f"map_jpeg_{copy.strength:g}", []).append(precision)
    values = dict(result.values)
    first = sorted(
        ((row.max(), int(row.argmax()) == own) for row, own in zip(similarity, owners, strict=True)), reverse=True
    )
    right = [place for place, (_, is_right) in enumerate(first, 1) if is_right]
    assert values.pop("micro_ap") == pytest.approx(sum(n / p for n, p in enumerate(right, 1)) / 120, abs=1e-9)
    assert values == pytest.approx({name: float(np.mean(part)) for name, part in kinds.items()}, abs=1e-12)


def test_micro_average_precision_by_hand() -> None:
    assert micro_average_precision([(0.9, True), (0.8, True)]) == 1.0
    assert micro_average_precision([(0.9, False), (0.8, True)]) == 0.25
    assert micro_average_precision([(0.8, True), (0.8, False)]) == 0.25  # of equals the wrong one counts first
    assert micro_average_precision([(0.8, False)]) == 0.0


def test_whitening_is_applied_to_all() -> None:
    draw = np.random.default_rng(1)
    found = random_set(draw)
    queries, originals, others = (draw.standard_normal((n, 10)).astype(np.float32) for n in (120, 30, 300))
    white = fit_whitening(others)
    plain = copy_detection(white.apply(queries), white.apply(originals), found)
    assert copy_detection(queries, originals, found, whitening=white).values == plain.values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queries": np.ones((3, 4), np.float32)}, "random has 120 copies, but there are features of 3"),
        ({"originals": np.ones((3, 4), np.float32)}, "random has 30 originals, but there are features of 3"),
        ({"distractors": np.ones((3, 5), np.float32)}, r"5 \(distractor\)"),
    ],
)
def test_mistakes(change: dict[str, Any], words: str) -> None:
    inputs: dict[str, Any] = {
        "queries": np.ones((120, 4), np.float32),
        "originals": np.ones((30, 4), np.float32),
        "copies": random_set(np.random.default_rng(0)),
    }
    with pytest.raises(CarpError, match=words):
        copy_detection(**(inputs | change))
