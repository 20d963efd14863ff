"""How many injected copies does `carp duplicates` find in a folder of real images, and what else?

    python -m benchmarks.duplicates --images FOLDER [FOLDER …] --weights [METHOD:]FILE --work FOLDER [--seed 1 2 3]
        [--quick] [--json]

10,000 real images, 500 of them with one altered copy each (JPEG, resize, small crops; nine kinds take turns); then, in
the place of these copies, 150 copies of each of the harder attacks. Pairs are counted: two images in one group. Real
folders hold near-copies already: pairs of two originals are told apart (`already there`) and count neither way; every
other pair that is no copy with its original counts as wrong. F1 strict is F1 if those already there were wrong, too.

A seed decides which images are taken, which of them are copied and how. The rule was found with seed 0: others are
the test. All images of the folders are embedded once, whatever the seed.
"""

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np

import carp
from benchmarks.injected_copies import EASY, HARD, write_copies
from benchmarks.shared import judged
from carp.features.extract import Features
from carp.images.decoding.decode import decode, read_file
from carp.random import key, uniforms
from carp.similarity.look_alike import agreement, look_at
from carp.similarity.near_copies import Copies, find_copies

_CHOICE = (17, 999)  # the stream that chooses the originals
Copy = tuple[str, int, Path]  # attack, number of the original, file


def choose(num_files: int, count: int, seed: int) -> list[int]:
    """So many of the files, in their order."""
    order = np.argsort(uniforms(key(seed, *_CHOICE, np.arange(num_files)), 1)[:, 0])[:count]
    return sorted(order.tolist())


def features_of(name: str, files: list[Path], arguments: argparse.Namespace) -> Features:
    """Stored below the work folder."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    listed = arguments.work / f"{name}.txt"
    text = "".join(f"{path.resolve()}\n" for path in files)
    if not listed.exists() or listed.read_text() != text:
        listed.write_text(text)
    store = carp.embed(
        arguments.weights,
        listed,
        arguments.work / f"{name}-features",
        size=arguments.size,
        resize=arguments.size,
        precision="bf16",
        batch_size=32,
        quiet=False,
    )
    assert not store.unreadable
    return store.features


def count_pairs(found: Copies, num_originals: int, copies: list[Copy]) -> dict[str, int]:
    """Pairs that are right, wrong, and already there."""
    counts = {"right": 0, "wrong": 0, "already there": 0}
    for group in found.groups:
        for a, b in combinations(group, 2):
            roots = [row if row < num_originals else copies[row - num_originals][1] for row in (a, b)]
            if b < num_originals:
                counts["already there"] += 1
            else:
                counts["right" if roots[0] == roots[1] else "wrong"] += 1
    return counts


def first_groups(found: Copies, files: list[Path], num_originals: int, copies: list[Copy]) -> None:
    """Print how many of the first groups hold a copy and its original and nothing else, by size and by certainty."""
    rows = {row for group in found.groups for row in group}
    looks = {row: look_at(decode(read_file(files[row]), str(files[row]))) for row in rows}
    by_certainty = sorted(found.groups, key=lambda group: -agreement([looks[row] for row in group]))
    for name, groups in (("largest first", found.groups), ("most certain first", by_certainty)):
        for count in (10, 50):
            first = [{r if r < num_originals else copies[r - num_originals][1] for r in g} for g in groups[:count]]
            right = sum(len(roots) == 1 for roots in first)
            print(f"{name}: {right} of the first {len(first)} groups are an original and its copies")


def scores(counts: dict[str, int], injected: int) -> dict[str, float]:
    """Precision, recall, F1; and F1 if near-copies that were there already were wrong."""
    right, wrong = counts["right"], counts["wrong"]
    return {
        "precision": right / max(1, right + wrong),
        "recall": right / injected,
        "f1": 2 * right / max(1, right + wrong + injected),
        "f1, strict": 2 * right / max(1, right + wrong + injected + counts["already there"]),
    }


def show(name: str, found: Copies, counts: dict[str, int], injected: int) -> dict[str, float]:
    """Print a row."""
    values = scores(counts, injected)
    threshold = "–" if found.threshold.value is None else f"{found.threshold.value:.3f}"
    cells = [f"{100 * value:.1f}" for value in values.values()]
    print(f"| {' | '.join([name, str(injected), threshold, *cells, str(counts['already there'])])} |", flush=True)
    return values


def measure(files: list[Path], known: Features, seed: int, arguments: argparse.Namespace) -> dict[str, float]:
    """Print the table of a seed; returns the scores of the easy copies."""
    num_images, num_easy, num_hard = (2_000, 100, 180) if arguments.quick else (10_000, 500, 1_350)
    chosen = choose(len(files), num_images, seed)
    originals, base = [files[i] for i in chosen], known[chosen]
    easy = write_copies(originals, EASY, num_easy, arguments.work / f"easy-{seed}", seed=2 * seed)
    hard = write_copies(originals, HARD, num_hard, arguments.work / f"hard-{seed}", seed=2 * seed + 1)
    of_easy = features_of(f"easy-{seed}", [path for _, _, path in easy], arguments)
    of_hard = features_of(f"hard-{seed}", [path for _, _, path in hard], arguments)
    print(f"\nSeed {seed}, {len(originals):,} images\n")
    print("| copies | injected | threshold | precision, % | recall, % | F1, % | F1 strict, % | already there |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    found = find_copies(np.concatenate([base, of_easy]))
    values = show("JPEG, resize, small crops", found, count_pairs(found, len(originals), easy), len(easy))
    group_of = {row: number for number, group in enumerate(found.groups) for row in group}
    for name in EASY:
        both = [(len(originals) + i, copy[1]) for i, copy in enumerate(easy) if copy[0] == name]
        inside = sum(group_of.get(row, -1) == group_of.get(original, -2) for row, original in both)
        print(f"| – {name} | {len(both)} | | | {100 * inside / len(both):.1f} | | | |")
    first_groups(found, [*originals, *(path for _, _, path in easy)], len(originals), easy)
    for name in HARD:
        rows = [i for i, copy in enumerate(hard) if copy[0] == name]
        copies = [hard[i] for i in rows]
        found = find_copies(np.concatenate([base, of_hard[rows]]))
        show(name, found, count_pairs(found, len(originals), copies), len(copies))
    found = find_copies(base)
    print(f"| none | 0 | {found.threshold.value} | | | | | {count_pairs(found, len(originals), [])['already there']} |")
    return values


def main() -> None:
    """Parse the command line and print a table a seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", nargs="+", type=Path, required=True, help="folders of JPEGs")
    parser.add_argument("--weights", required=True, help="run folder, FILE or METHOD:FILE")
    parser.add_argument("--work", type=Path, required=True, help="folder for copies and features, reused by later runs")
    parser.add_argument(
        "--seed", nargs="+", type=int, default=[0], help="one table per seed, then the mean and the minimum"
    )
    parser.add_argument("--size", type=int, default=128, help="of the images for the encoder")
    parser.add_argument("--quick", action="store_true", help="2,000 images, 100 copies")
    parser.add_argument("--json", action="store_true", help="the measures with a target as the last line")
    arguments = parser.parse_args()
    files = [path for folder in arguments.images for path in sorted(folder.rglob("*.jpg"))]
    known = features_of("all", files, arguments)
    scored = [measure(files, known, seed, arguments) for seed in arguments.seed]
    for name in scored[0]:
        values = [100 * values[name] for values in scored]
        print(f"{name}: mean {np.mean(values):.1f}, least {min(values):.1f} of {len(values)} seeds")
    if arguments.json:
        least = min(values["f1"] for values in scored)
        print(json.dumps({"duplicates, least F1": judged(least, 0.95, at_least=True)}))


if __name__ == "__main__":
    main()
