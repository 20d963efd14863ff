"""How much of training is spent waiting for data? The recipe `cifar10-cpu`, on images held in memory.

    python -m benchmarks.waiting [--data cifar10/train] [--json]

Waiting is the time until the next batch is there, from the moment the loop asks for it. Both ways to make batches are
measured in turns: in the training loop itself, as `carp train` does on a CPU, and one ahead in a thread, as it does
elsewhere. Also checked: both give the same batches.
"""

import argparse
import json
import time
from contextlib import closing
from typing import NamedTuple

import torch

from benchmarks.shared import judged
from carp.config import Config, resolve
from carp.config.recipe import read_recipe
from carp.images.loading.in_memory import hold_in_memory
from carp.images.loading.loader import SmallImageLoader
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

CPU = torch.device("cpu")
TARGET = 0.05
WARM_UP = 3  # steps that set things up and are not counted


class Measured(NamedTuple):
    """Seconds of some steps."""

    waiting: float
    in_all: float

    @property
    def share(self) -> float:
        """Waiting, of the whole."""
        return self.waiting / self.in_all


def measure(source: ArraySource, config: Config, *, ahead: bool, steps: int) -> Measured:
    """Train for some steps."""
    loader = SmallImageLoader(source, config, ahead=ahead)
    model = build_model(config, CPU).train()
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, loader.steps_per_epoch), config, CPU)
    waiting, start = 0.0, 0.0
    with closing(loader.batches(0, WARM_UP + steps)) as batches:
        for step in range(WARM_UP + steps):
            if step == WARM_UP:
                waiting, start = 0.0, time.perf_counter()
            asked = time.perf_counter()
            batch = next(batches)
            waiting += time.perf_counter() - asked
            stepper(batch)
    return Measured(waiting, time.perf_counter() - start)


def check_same(source: ArraySource, config: Config, *, steps: int = 5) -> None:
    """Both ways give the same bits."""
    ours, theirs = (SmallImageLoader(source, config, ahead=ahead).batches(0, steps) for ahead in (True, False))
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True)), f"step {a.step} differs"


def main() -> None:
    """Parse the command line, measure, print a table or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="embedded:shapes")
    parser.add_argument("--recipe", default="cifar10-cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="10 steps, one round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    steps, rounds = (10, 1) if arguments.quick else (arguments.steps, arguments.rounds)
    data = open_source(arguments.data)
    config = resolve(read_recipe(arguments.recipe), num_images=len(data))
    source = hold_in_memory(data, config.global_size)
    check_same(source, config)
    found: dict[bool, list[Measured]] = {False: [], True: []}
    for _ in range(rounds):
        for ahead, runs in found.items():
            runs.append(measure(source, config, ahead=ahead, steps=steps))
    shares = {ahead: min(run.share for run in runs) for ahead, runs in found.items()}
    pace = {ahead: min(run.in_all for run in runs) / steps for ahead, runs in found.items()}
    if arguments.json:
        print(json.dumps({"share of time waiting for data": judged(shares[False], TARGET, at_least=False)}))
        return
    print(f"{arguments.recipe}, {arguments.data}, {arguments.threads} threads, best of {rounds} × {steps} steps")
    print("| batches are made | waiting, share | ms a step in all |\n| --- | --- | --- |")
    for ahead, name in ((False, "in the loop"), (True, "one ahead")):
        print(f"| {name} | {shares[ahead]:.1%} | {1e3 * pace[ahead]:.0f} |")


if __name__ == "__main__":
    main()
