"""How much faster are prototypes of unit length, forward and backward, than with `F.normalize`?

    python -m benchmarks.unit_length [--threads 1] [--rounds 8]

The two take turns; times are the best of several rounds.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.shared import take_turns
from carp.model.assigner import unit_rows

CASES = ((1_024, 128), (16_384, 128), (65_536, 256))


def there_and_back(normalise: Callable[[Tensor], Tensor], x_KD: Tensor, upstream_KD: Tensor) -> None:
    """Normalise the rows, and propagate a gradient through it."""
    x_KD.grad = None
    normalise(x_KD).backward(upstream_KD)  # type: ignore[no-untyped-call]


def main() -> None:
    """Print one row per number of prototypes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("| prototypes | F.normalize, ms | CARP, ms | times as fast |\n| --- | --- | --- | --- |")
    for count, dimensions in CASES:
        given = torch.randn(count, dimensions, requires_grad=True), torch.randn(count, dimensions)
        contenders: dict[str, Callable[[], object]] = {
            "torch": partial(there_and_back, partial(F.normalize, dim=-1), *given),
            "carp": partial(there_and_back, unit_rows, *given),
        }
        best = take_turns(contenders, arguments.rounds)
        times = f"{1000 * best['torch']:.1f} | {1000 * best['carp']:.1f} | {best['torch'] / best['carp']:.1f}"
        print(f"| {count:,} × {dimensions} | {times} |", flush=True)


if __name__ == "__main__":
    main()
