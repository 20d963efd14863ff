"""Ten steps of training in the chosen precision, as training takes them: finite, complete, exact and resumable."""

import copy
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from carp.config import Config
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.in_memory import hold_in_memory, is_held
from carp.images.loading.loader import Loader, make_loader
from carp.model.carp import Carp
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject, few_images, small_run
from carp.runs import checkpoint as checkpoints
from carp.runs.metrics_log import read_metrics
from carp.training.display import TrainingDisplay
from carp.training.loop import Training
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

_STEPS, _SAVED_AT = 10, 5
_IMAGES = {"cpu": 4, "other": 16}
# Relative difference of the gradients of one batch and of its two halves. Half precision rounds at 2^-8 or 2^-11,
# as do products in TF32.
_TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}


def check_training(subject: Subject) -> Iterator[Finding]:
    """Yield findings about ten steps, their gradients, micro-batches, and a resumed run."""
    images = min(subject.config.batch_size, _IMAGES.get(subject.device.type, _IMAGES["other"]))
    config = small_run(subject.config, images, epochs=_STEPS)
    config = config.model_copy(update={"log_steps": 1, "checkpoint_steps": _SAVED_AT, "keep_checkpoints": _STEPS})
    source = few_images(subject, images)
    with pixel_limit(config.max_image_pixels):
        source = hold_in_memory(source, config.global_size) if is_held(config) else source
        loader = make_loader(source, config)
        training = _train(config, loader, subject.scratch / "ten", subject.device)
        yield _finite(subject.scratch / "ten", config)
        yield _gradients(training.model)
        if images >= 4:
            yield _accumulation(training.model, config, loader, subject.device)
        yield _resume(subject, config, loader)


def _train(config: Config, loader: Loader, folder: Path, device: torch.device) -> Training:
    folder.mkdir(exist_ok=True)
    training = Training(config, loader, folder, device, TrainingDisplay(quiet=True))
    training.run()
    return training


def _finite(folder: Path, config: Config) -> Finding:
    """A step that is not finite raises, and is reported by the check as a whole; fp16 may skip some."""
    lines = read_metrics(folder / "metrics.jsonl")
    losses = [line["loss"] for line in lines if "loss" in line]
    skipped = sum("skipped" in line for line in lines)
    return judged(
        "ten steps",
        len(losses) == _STEPS and all(map(math.isfinite, losses)) and skipped < _STEPS,
        f"{config.encoder} in {config.precision}: {len(losses)} losses from {losses[0]:.3f} to {losses[-1]:.3f}, "
        f"{skipped} steps skipped",
        "set precision=fp32, or lower lr",
        values={"first_loss": losses[0], "last_loss": losses[-1], "skipped": skipped},
    )


def _gradients(model: Carp) -> Finding:
    """Look at the gradients of the last step, which the optimiser leaves in place."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    without = [name for name, gradient in gradients.items() if gradient is None or not bool(gradient.any())]
    named = f": {', '.join(without[:3])}" if without else ""
    return judged(
        "gradients",
        not without,
        f"{len(gradients) - len(without)} of {len(gradients)} parameters have a gradient{named}",
        "these weights would never change: use another encoder or other encoder_options",
        otherwise="warn" if len(without) < len(gradients) else "fail",
        values={"parameters": len(gradients), "without": len(without)},
    )


def _accumulation(model: Carp, config: Config, loader: Loader, device: torch.device) -> Finding:
    """Compare the gradient of a batch with that of its halves; batch norm uses its running statistics in both."""
    (batch,) = loader.batches(0, 1)
    found: list[Tensor] = []
    for micro_batch in (None, batch.num_images // 2):
        divided = config.model_copy(update={"micro_batch": micro_batch, "accumulate": "exact"})
        own = copy.deepcopy(model).eval()
        Stepper(own, build_optimiser(own, divided), Schedules(divided, 1), divided, device)(batch)
        found.append(torch.cat([p.grad.flatten().float() for p in own.parameters() if p.grad is not None]))
    whole, halves = found
    difference = float((halves - whole).norm() / whole.norm())
    return judged(
        "micro-batches",
        difference < _TOLERANCE[config.precision],
        f"the gradient of two halves differs from that of the batch by {difference:.1e} (allowed: "
        f"{_TOLERANCE[config.precision]:.0e})",
        "set micro_batch=null, or precision=fp32",
        values={"relative_difference": difference},
    )


def _resume(subject: Subject, config: Config, loader: Loader) -> Finding:
    """Continue from the checkpoint in the middle; on a CPU, the result has the same bits."""
    first, second = subject.scratch / "ten", subject.scratch / "resumed"
    middle = next(p for p in checkpoints.list_checkpoints(first / "checkpoints") if checkpoints.step_of(p) == _SAVED_AT)
    shutil.copytree(middle, second / "checkpoints" / middle.name)
    shutil.copy(first / "metrics.jsonl", second)
    _train(config, loader, second, subject.device)
    ours, theirs = (checkpoints.load_newest(folder / "checkpoints")[0] for folder in (second, first))
    assert ours is not None
    assert theirs is not None
    numbers = [
        (tensor.double(), theirs.tensors[name].double())
        for name, tensor in ours.tensors.items()
        if tensor.is_floating_point()
    ]
    same = all(torch.equal(a, b) for a, b in numbers) and ours.step == theirs.step == _STEPS
    far = max(float((a - b).norm() / b.norm().clamp_min(1e-12)) for a, b in numbers)
    exact = subject.device.type == "cpu" or config.deterministic
    return judged(
        "resume",
        same or (not exact and far < 1e-2),
        f"resumed at step {_SAVED_AT}: {'the same bits as' if same else f'{far:.1e} away from'} an uninterrupted run",
        "rerun the doctor on an idle machine; if this remains, do not rely on resuming here",
        values={"relative_difference": far},
    )
