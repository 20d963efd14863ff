"""Is a compiled step faster on a CPU? ResNet-18 at 224 pixels, one thread; compiled and plain steps take turns.

    OMP_NUM_THREADS=1 python -m benchmarks.compilation

CPU time is measured, so that other programs matter less.
"""

import time

import torch

from carp.compute.compilation import compile_networks
from carp.config import Config, resolve
from carp.images.loading.loader import Batch
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

CPU = torch.device("cpu")
IMAGES, ROUNDS = 8, 6
SETTINGS = {"encoder": "resnet18", "global_size": 224, "batch_size": IMAGES, "num_prototypes": 1024, "block_size": 64}


def make_stepper(config: Config, *, compiled: bool) -> Stepper:
    """Build a model, and compile it as training does."""
    model = build_model(config, CPU).train()
    if compiled:
        branches = (model.student, model.teacher)
        compile_networks([part for branch in branches for part in (branch.encoder, branch.projector)])
    return Stepper(model, build_optimiser(model, config), Schedules(config, ROUNDS + 1), config, CPU)


def main() -> None:
    """Print the fastest step of each kind, and their ratio."""
    config = resolve(SETTINGS, num_images=IMAGES)
    views = [torch.randint(0, 256, (IMAGES, 224, 224, 3), dtype=torch.uint8).permute(0, 3, 1, 2) for _ in range(2)]
    steppers = {name: make_stepper(config, compiled=name == "compiled") for name in ("plain", "compiled")}
    seconds = {name: list[float]() for name in steppers}
    for step in range(ROUNDS + 1):
        for name, stepper in steppers.items():
            start = time.process_time()
            stepper(Batch(step, 0, torch.arange(IMAGES).numpy(), views, IMAGES))
            seconds[name].append(time.process_time() - start)
    for name, (first, *others) in seconds.items():
        print(f"{name:<9} first step {first:.1f} s, fastest of the others {min(others):.2f} s")
    print(f"plain ÷ compiled: {min(seconds['plain'][1:]) / min(seconds['compiled'][1:]):.2f}")


if __name__ == "__main__":
    main()
