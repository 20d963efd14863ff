"""Retrieval and copy detection with real images and real weights.

    python -m benchmarks.retrieval --images roxford5k/jpg --ground-truth gnd_roxford5k.pkl --model swav:FILE --cache X
    python -m benchmarks.retrieval --copies ATTACKED --model runs/photos --cache Y

A model is a run folder, a file of weights, or METHOD:FILE (`carp weights`), as for `carp eval`. Features are kept in
`--cache`, and images are not encoded again when they are there.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import carp
from carp.evaluation.protocols.copies import CopiesSettings
from carp.evaluation.ranked.copy_scores import copy_detection
from carp.evaluation.ranked.copy_sets import read_copies
from carp.evaluation.ranked.ground_truth import read_ground_truth
from carp.evaluation.ranked.retrieval_scores import retrieval
from carp.evaluation.ranked.whitening import fit_whitening
from carp.evaluation.result import Result
from carp.features.extract import Features
from carp.features.scales import THREE_SCALES, Boxes, extract_scales
from carp.images.open_source import open_source
from carp.images.source import Source
from carp.images.sources.subset import by_name

CPU = torch.device("cpu")


def features(
    encoder: nn.Module,
    source: Source,
    name: str,
    cache: Path,
    *,
    scale: float = 1.0,
    boxes: Boxes | None = None,
    max_side: int | None = None,
    square: int | None = None,
) -> Features:
    """Features of one scale, encoded unless they are kept."""
    path = cache / f"{name}-{scale:.4f}.npy"
    if not path.exists():
        started, told = time.monotonic(), time.monotonic()

        def progress(done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(f"# {name} at scale {scale:.2f}: {done}/{total}", flush=True)

        found = extract_scales(
            encoder,
            source,
            device=CPU,
            scales=(scale,),
            boxes=boxes,
            max_side=max_side,
            square=square,
            progress=progress,
        )
        cache.mkdir(parents=True, exist_ok=True)
        np.save(path, found)
        print(f"# {name} at scale {scale:.2f}: {len(found)} images, {time.monotonic() - started:.0f} s", flush=True)
    kept: Features = np.load(path)
    if len(kept) != len(source):
        raise SystemExit(f"{path} holds features of {len(kept)} images, not {len(source)}: give another --cache.")
    return kept


def revisited(encoder: nn.Module, args: argparse.Namespace) -> dict[str, Result]:
    """Easy, medium and hard, at one scale and at three."""
    truth, source = read_ground_truth(args.ground_truth), open_source(args.images)
    named_by = str(args.ground_truth)
    queries, database = (by_name(source, names, named_by=named_by) for names in (truth.queries, truth.database))
    parts: dict[str, list[Features]] = {"queries": [], "database": []}
    for scale in THREE_SCALES:
        for name, part, boxes in (("queries", queries, truth.boxes), ("database", database, None)):
            encoded = features(encoder, part, name, args.cache, scale=scale, boxes=boxes, max_side=args.max_side)
            parts[name].append(encoded)
    levels = truth.levels()
    averaged: dict[str, Features] = {name: np.stack(scaled).mean(axis=0) for name, scaled in parts.items()}
    whole = features(encoder, queries, "queries-whole", args.cache, max_side=args.max_side)
    by_chance = np.random.default_rng(0).standard_normal((len(queries) + len(database), 8)).astype(np.float32)
    return {
        "1 scale": retrieval(parts["queries"][0], parts["database"][0], levels),
        "1 scale, queries not cut": retrieval(whole, parts["database"][0], levels),
        "3 scales": retrieval(averaged["queries"], averaged["database"], levels),
        "by chance": retrieval(by_chance[: len(queries)], by_chance[len(queries) :], levels),
    }


def copies(encoder: nn.Module, args: argparse.Namespace) -> dict[str, Result]:
    """Every attack, without and with distractors and whitening."""
    found, source = read_copies(args.copies), open_source(args.copies)
    named_by = str(args.copies)
    originals = by_name(source, found.originals, named_by=named_by)
    altered = by_name(source, [copy.name for copy in found.copies], named_by=named_by)
    queries = features(encoder, altered, "copies", args.cache, square=args.square)
    known = features(encoder, originals, "originals", args.cache, square=args.square)
    results = {"originals": copy_detection(queries, known, found, depth=args.depth)}
    if args.distractors is not None:
        others = features(encoder, open_source(args.distractors), "distractors", args.cache, square=args.square)
        white = fit_whitening(others)
        results["with distractors"] = copy_detection(queries, known, found, distractors=others, depth=args.depth)
        results["whitened"] = copy_detection(queries, known, found, whitening=white, depth=args.depth)
    return results


def table(results: dict[str, Result]) -> None:
    """A row a value, a column a variant."""
    print(f"| value, % | {' | '.join(results)} |\n| --- |{' --- |' * len(results)}")
    for name in next(iter(results.values())).values:
        cells = (f"{100 * r.values[name]:.1f}" if name in r.values else "" for r in results.values())
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Encode what is not kept, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", help="images of the ground truth")
    parser.add_argument("--ground-truth", type=Path, help="gnd_roxford5k.pkl, or JSON")
    parser.add_argument("--copies", type=Path, help="Copydays, or a folder of `carp data attack`")
    parser.add_argument("--distractors", help="images that are not originals; the whitening is also learned on them")
    parser.add_argument("--model", required=True, help="run folder, FILE or METHOD:FILE")
    parser.add_argument("--branch", default="teacher", help="of a run")
    parser.add_argument("--max-side", type=int, help="shrink larger images to this side; default: original size")
    parser.add_argument("--square", type=int, default=CopiesSettings().side, help="side of the images of copies")
    parser.add_argument("--depth", type=int, default=CopiesSettings().depth, help="results that count for copies")
    parser.add_argument("--cache", type=Path, required=True, help="folder of features: one per encoder and dataset")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    args = parser.parse_args()
    if (args.ground_truth is None) == (args.copies is None) or (args.images is None) != (args.ground_truth is None):
        parser.error("give --images and --ground-truth, or --copies")
    encoder = carp.load(args.model, args.branch, device="cpu").module
    results = revisited(encoder, args) if args.copies is None else copies(encoder, args)
    table(results)
    if args.json:
        print(json.dumps({name: {"values": r.values, "settings": r.settings} for name, r in results.items()}))


if __name__ == "__main__":
    main()
