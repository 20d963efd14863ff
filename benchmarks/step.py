"""How much of a training step is the head? Before (the paper's pseudo-code) and after, for ResNet-18 and ResNet-50.

    python -m benchmarks.step

One step is: the teacher on two views, the student on two views forward and backward, the head forward and backward,
the optimiser and the moving average. The head is timed at 256 images; everything else at a batch that fits into 16 GB.
Both are the best of several runs and are told per image, so that they can be added.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.head import RUN, Case, make_inputs
from carp.config import Config, resolve
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser, set_hyperparameters

CPU = torch.device("cpu")


SMALL = {"encoder_options": {"channels": [16, 32, 64, 128], "stem_type": "deep", "stem_width": 8}, "stem_stride": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "quarter-width ResNet-18, 32 px": {"encoder": "resnet18", "global_size": 32, "batch_size": 256, **SMALL},
    "ResNet-18, 32 px": {"encoder": "resnet18", "global_size": 32, "batch_size": 64},
    "ResNet-18, 224 px": {"encoder": "resnet18", "global_size": 224, "batch_size": 32},
    "ResNet-50, 224 px": {"encoder": "resnet50", "global_size": 224, "batch_size": 32},
}
HEAD_BATCH = 256


def encoder_step(config: Config) -> Callable[[], None]:
    """Everything of a step but the head: the gradient on the embeddings is given."""
    model = build_model(config, CPU)
    optimiser = build_optimiser(model, config)
    set_hyperparameters(optimiser, lr=0.1, weight_decay=1e-6)
    side = config.global_size
    views = [
        torch.rand(config.batch_size, 3, side, side).contiguous(memory_format=torch.channels_last) for _ in range(2)
    ]

    def step() -> None:
        with torch.no_grad():
            for view in views:
                model.teacher(view)
        z = model.embed_student(views)
        torch.autograd.backward(z, [torch.ones_like(e) for e in z])
        optimiser.step()
        model.update_teacher(0.99)

    return step


def best_of(run: Callable[[], None], repeats: int) -> float:
    """Best time in seconds, after one run that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Parse the command line and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print("K = 65,536, N_B = 512, D = 256, two views, float32; milliseconds an image")
    print("| encoder | without the head | pseudo-code | its share | ours | its share | step, times faster |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    inputs = make_inputs(Case(HEAD_BATCH, 65_536, 2))
    before, after = (
        best_of(partial(RUN[contender], inputs), arguments.repeats) / HEAD_BATCH
        for contender in ("pseudo-code", "ours")
    )
    for name, settings in SETTINGS.items():
        config = resolve(settings, num_images=settings["batch_size"])
        rest = best_of(encoder_step(config), arguments.repeats) / config.batch_size
        cells = [
            name,
            f"{1e3 * rest:.1f}",
            f"{1e3 * before:.1f}",
            f"{before / (before + rest):.0%}",
            f"{1e3 * after:.1f}",
            f"{after / (after + rest):.0%}",
            f"{(before + rest) / (after + rest):.2f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
