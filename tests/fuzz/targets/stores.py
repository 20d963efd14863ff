"""Feature stores and search indexes: a damaged one is refused, or what comes of it is what came before."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.fuzz.case import IN, OUT, Case, Check, Outcome, Target
from tests.fuzz.mutate import flip_bits, mutate
from tests.fuzz.targets.shards import text_of
from tests.fuzz.valid import Valid

_CHECKED = frozenset({0, 1, 2})
REPORTS = ("carp: warning: ", "warning: ")
"""How a line begins that reports damage without ending the command."""

Result = Callable[[Outcome, Path], object]  # what a command makes of its input


def store_target(valid: Valid) -> Target:
    """Damage in any file of a store."""
    store, images = valid.store, valid.images
    names = [path.name for path in sorted(store.iterdir())]
    place = f"{IN}/store"
    commands: list[tuple[tuple[str, ...], Result]] = [
        (("eval", "knn", "--data", place, "--out", OUT), _printed),
        (("eval", "knn", "--data", str(store), "--test", place, "--out", OUT), _printed),
        (("index", place, "--out", f"{OUT}/index", "--kind", "exact"), _file("index/vectors.faiss")),
        (("duplicates", str(images), "--features", place, "--out", OUT), _printed),
    ]
    expected = _expectations(valid, commands, {place: store})
    unfinished, finish = (
        valid.unfinished_store,
        ("embed", str(valid.run), "--data", str(images), "--out", f"{OUT}/store"),
    )
    left = [path.name for path in sorted(unfinished.iterdir())]
    assert "store.json" not in left and any(name.startswith("part-") for name in left), left
    features = _file("store/features.npy")
    finished = unchanged_or_reported((store / "features.npy").read_bytes(), features)

    def case(rng: Random) -> Case:
        if rng.random() < 0.2:
            name = rng.choice(left)
            files = {f"{OUT}/store": unfinished, f"{OUT}/store/{name}": damaged(rng, unfinished / name)}
            return Case(finish, files, f"unfinished: {name}", check=finished)
        name = rng.choice(names)
        data = damaged(rng, store / name)
        copy = {place: store, f"{place}/{name}": data}
        if rng.random() < 0.2:
            return Case(("check", place), copy, name, check=not_called_ok(store / name, data), codes=_CHECKED)
        words, check = rng.choice(expected)
        return Case(words, copy, name, check=check)

    return case


def index_target(valid: Valid) -> Target:
    """Damage in any file of an index, or of the store that it was made of."""
    kinds = []
    for kind in ("exact", "ivf", "hnsw"):
        folder = valid.index(kind)
        search = ("search", f"{IN}/x/index", str(valid.query), "--json")
        kinds.append((folder, _expectations(valid, [(search, _printed)], {f"{IN}/x": folder})))

    def case(rng: Random) -> Case:
        folder, expected = rng.choice(kinds)
        words, check = rng.choice(expected)
        names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
        inside = [name for name in names if name.parts[0] == "index"]
        name = rng.choice(inside if rng.random() < 0.7 else names)
        data = damaged(rng, folder / name)
        files: dict[str, bytes | Path] = {f"{IN}/x": folder, f"{IN}/x/{name}": data}
        if rng.random() < 0.2:
            return Case(
                ("check", f"{IN}/x"), files, str(name), check=not_called_ok(folder / name, data), codes=_CHECKED
            )
        return Case(words, files, f"{folder.name}: {name}", check=check)

    return case


def damaged(rng: Random, path: Path) -> bytes:
    """A file with some damage; often a bit, which is the hardest to notice."""
    data = path.read_bytes()
    if rng.random() < 0.4:
        return flip_bits(rng, data)
    if path.suffix in {".json", ".jsonl", ".yaml"} and rng.random() < 0.5:
        return text_of(rng, data.decode())
    return mutate(rng, data)


def unchanged_or_reported(expected: object, result: Result) -> Check:
    """A check that success means the result of the undamaged input, unless the damage is reported."""

    def check(outcome: Outcome, folder: Path) -> str | None:
        if outcome.code != 0 or any(line.startswith(REPORTS) for line in outcome.stderr.split("\n")):
            return None
        return None if result(outcome, folder) == expected else "damage was accepted: success, and another result"

    return check


def not_called_ok(path: Path, data: bytes, below: str = "") -> Check:
    """A check that `carp check` does not call everything `below` a folder ok after a file there changed."""
    before = path.read_bytes()
    same = data == before or (path.suffix == ".json" and _parsed(data) == _parsed(before))

    def check(outcome: Outcome, _folder: Path) -> str | None:
        lines = [line.split(maxsplit=1) for line in outcome.stdout.splitlines()[:-1]]
        all_ok = all(verdict == "ok" for verdict, place in lines if place.startswith(below))
        unnoticed = not same and outcome.code == 0 and all_ok
        return f"carp check did not notice that {path.name} changed" if unnoticed else None

    return check


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _expectations(
    valid: Valid, commands: list[tuple[tuple[str, ...], Result]], files: dict[str, Path]
) -> list[tuple[tuple[str, ...], Check]]:
    """Every command with a check against its outcome for undamaged files."""
    expected = []
    for words, result in commands:
        outcome, made = valid.undamaged(Case(words, files), result)
        assert outcome.code == 0, f"carp {' '.join(words)}: {outcome.stderr}"
        expected.append((words, unchanged_or_reported(made, result)))
    return expected


def _printed(outcome: Outcome, _folder: Path) -> object:
    return outcome.stdout


def _file(name: str) -> Result:
    return lambda _outcome, folder: (folder / OUT / name).read_bytes()
