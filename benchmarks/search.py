"""Does `carp search` cost more than faiss itself, and what do the approximate indices find?

    python -m benchmarks.search [--quick] [--json] [--kinds exact ivf hnsw auto] [--features 512]

1,000,000 vectors of 512 features, 100 queries at once, k = 10: `VectorIndex.search` beside `IndexFlatIP.search` of
faiss with the same vectors. Contenders take turns; the best time of each counts, in seconds of the processor, so that
other work on the machine does not. Approximate kinds (vectors in clusters, as features are; `auto` is what `carp index`
chooses): recall@10 as measured when they were built with some of their own vectors, recall@10 of the 100 queries, which
they have not seen, and how many times as fast they are.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import faiss
import numpy as np

from benchmarks.shared import judged
from carp.features.extract import Features
from carp.similarity.vector_index import build_index
from carp.similarity.vectors import parts, unit_length

QUERIES, K = 100, 10


def make_vectors(count: int, num_features: int) -> tuple[Features, Features]:
    """Noisy clusters, and queries from the same."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((1000, num_features), dtype=np.float32)
    vectors = rng.standard_normal((count + QUERIES, num_features), dtype=np.float32)
    for part in parts(vectors):  # views of it
        np.add(part, 0.5 * centres[rng.integers(0, 1000, len(part))], out=part)
    return vectors[:count], vectors[count:]


def processor_seconds(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Best of each, of all threads together."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - start)
    return best


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 vectors")
    parser.add_argument("--json", action="store_true", help="the measures with a target as the last line")
    parser.add_argument("--kinds", nargs="+", choices=("exact", "ivf", "hnsw", "auto"), default=["exact"])
    parser.add_argument("--features", type=int, default=512, help="of a vector")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    faiss.omp_set_num_threads(arguments.threads)
    count, num_features = (100_000 if arguments.quick else 1_000_000), arguments.features
    vectors, queries = make_vectors(count, num_features)
    theirs = faiss.IndexFlatIP(num_features)
    for part in parts(vectors):
        theirs.add(unit_length(part))
    unit = unit_length(queries)
    print("| measure | value | target |\n| --- | --- | --- |", flush=True)
    targets = {}
    wanted = theirs.search(unit, K)[1]
    for asked in arguments.kinds:
        start = time.process_time()
        ours = build_index(vectors, asked)
        kind = ours.kind
        built = time.process_time() - start
        contenders: dict[str, Callable[[], object]] = {
            "ours": partial(ours.search, queries, K),
            "faiss": partial(theirs.search, unit, K),
        }
        seconds = processor_seconds(contenders, arguments.rounds)
        ratio = seconds["ours"] / seconds["faiss"]
        if kind == "exact":
            assert np.array_equal(ours.search(queries, K)[1], wanted)
            targets["search, exact / faiss itself"] = judged(ratio, 1.1, at_least=False)
            print(f"| exact: seconds for {QUERIES} queries | {seconds['ours']:.3g} | |")
            print(f"| exact / faiss itself | {ratio:.3f} | ≤ 1.1 |", flush=True)
        else:
            print(f"| {kind} {ours.settings}: recall@10 as `carp index` tells | {ours.recall:.3f} | |")
            pairs = zip(ours.search(queries, K)[1], wanted, strict=True)
            recall = np.mean([len(np.intersect1d(*pair)) / K for pair in pairs])
            print(f"| {kind}: recall@10 of new queries | {recall:.3f} | |")
            print(f"| exact / {kind}, times as fast | {1 / ratio:.1f} | |")
        print(f"| {kind}: seconds to build | {built:.1f} | |", flush=True)
    if arguments.json:
        print(json.dumps(targets))


if __name__ == "__main__":
    main()
