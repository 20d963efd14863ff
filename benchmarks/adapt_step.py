"""How long does a training step of the recipe `adapt` take beside a plain PyTorch loop?

    python -m benchmarks.adapt_step [--size 64] [--batch 128] [--threads 1] [--rounds 4] [--precision bf16]

Both train EfficientNet-Lite0 on the same views, which are made once: teacher and student on two views, the loss of the
paper over random blocks, AdamW, and the moving average of the teacher. The plain loop is what one would write by hand,
with batch norm in evaluation mode, as in the recipe. They take turns; the best of the rounds counts.
"""

import argparse
import copy
import json
import time
from collections.abc import Callable

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.shared import CPU, judged
from carp.config import Config, resolve
from carp.encoders.starting_point import settings_with_start
from carp.images.loading.loader import Batch, make_loader
from carp.images.sources.array import ArraySource
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper


def carps(config: Config, batch: Batch) -> Callable[[], None]:
    """A step of CARP."""
    model = build_model(config, CPU).train()
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 10), config, CPU)

    def step() -> None:
        stepper(batch)

    return step


class _Network(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = timm.create_model(config.encoder, num_classes=0, **config.encoder_options)
        hidden, embedding = config.projector_hidden, config.embedding
        self.projector = nn.Sequential(
            nn.Linear(self.encoder.num_features, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.GELU(),
            nn.Linear(hidden, embedding),
        )
        self.prototypes = nn.Parameter(torch.randn(config.num_prototypes, embedding))

    def forward(self, view: Tensor) -> Tensor:
        logits: Tensor = self.projector(self.encoder(view)) @ F.normalize(self.prototypes, dim=-1).T
        return logits


def plain(config: Config, batch: Batch) -> Callable[[], None]:
    """The same step, written by hand."""
    student = _Network(config).to(memory_format=torch.channels_last)
    student.train()
    student.encoder.eval()  # batch norm keeps its statistics
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.05)
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (config.mean, config.deviation))

    def step() -> None:
        views = [
            ((view.float() / 255 - mean) / deviation).contiguous(memory_format=torch.channels_last)
            for view in batch.views
        ]
        blocks = torch.randperm(config.num_prototypes).view(-1, config.block_size)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.half):
            student_logits = [student(view)[:, blocks].float() for view in views]
            with torch.no_grad():
                targets = [teacher(view)[:, blocks].float().softmax(dim=-1) for view in views]
        loss = torch.zeros(())
        for own, other in ((0, 1), (1, 0)):
            agreement = (student_logits[own].softmax(dim=-1) * targets[other]).sum(dim=-1)
            loss = loss - agreement.clamp_min(1e-30).log().mean()
        average = torch.cat([logits.softmax(dim=-1) for logits in student_logits]).mean(dim=0)
        loss = loss + config.entropy_weight[0] * (average * average.log()).sum(dim=-1).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.05)

    return step


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 if the processor has it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes: dict[str, object] = {"global_size": arguments.size, "batch_size": arguments.batch, "micro_batch": None}
    sizes["precision"] = arguments.precision
    config = resolve(settings_with_start("adapt", sizes), num_images=8 * arguments.batch)
    side = arguments.size + 16
    images = np.random.default_rng(0).integers(0, 256, (arguments.batch, side, side, 3), dtype=np.uint8)
    batch = next(iter(make_loader(ArraySource(images), config).batches(0, 1)))
    if batch.views[0].dtype != torch.uint8:
        batch.views[:] = [(view * 255).byte() for view in batch.views]
    contenders = {"carp": carps(config, batch), "plain": plain(config, batch)}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + arguments.rounds):
        for name, step in contenders.items():
            start = time.perf_counter()
            step()
            taken[name].append(time.perf_counter() - start)
    best = {name: min(times[1:]) for name, times in taken.items()}
    seconds = {f"{name}, s": round(value, 3) for name, value in best.items()}
    ratio = judged(best["carp"] / best["plain"], 1.1, at_least=False)
    setting = {"size": arguments.size, "batch": arguments.batch, "precision": arguments.precision}
    print(json.dumps({**setting, **seconds, "carp / plain": ratio}))


if __name__ == "__main__":
    main()
