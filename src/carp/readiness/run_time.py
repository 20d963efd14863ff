"""Whether the planned run is possible, and how long it will take here."""

from collections.abc import Iterator

import torch

from carp.compute.threads import available_cores
from carp.console.quantities import counted, duration, duration_range, in_bytes
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.order import check_batch_size, steps_in_epoch
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject
from carp.training.planning.estimate import estimate
from carp.training.planning.memory_check import memory_for_training, memory_problem
from carp.training.planning.timing import time_steps

_SECONDS = 8.0
_DAYS = 30.0


def check_plan(subject: Subject) -> Iterator[Finding]:
    """Yield whether images and memory suffice for the settings."""
    config = subject.config
    check_batch_size(len(subject.images), config.batch_size)
    free = memory_for_training(subject.device)
    if subject.device.type == "cpu":
        free //= subject.processes
    needs = estimate(config)
    problem = memory_problem(config, needs, free)
    images = counted(len(subject.images), "image") if subject.given else "generated images"
    measured = f"{config.encoder}, {images}, batch_size {config.batch_size:,}: needs {in_bytes(needs.total_bytes)}"
    yield judged("plan", problem is None, measured, problem or "")


def check_time(subject: Subject) -> Iterator[Finding]:
    """Yield the time of a step of the recipe, and the predicted time of the run."""
    config = subject.config
    changes = {"workers": min(config.workers, available_cores()), "threads": torch.get_num_threads()}
    with pixel_limit(config.max_image_pixels):
        timing = time_steps(config.model_copy(update=changes), subject.images, subject.device, seconds=_SECONDS)
    subject.seconds_per_step = timing.slowest
    scaled = "" if timing.images == config.batch_size else f", scaled from {timing.images} images"
    step = f"{duration_range(timing.fastest, timing.slowest)} per step of {config.batch_size:,} images{scaled}"
    values = {"seconds_per_step": timing.slowest}
    if not subject.given:
        yield Finding("time", "pass", f"{step}, in one process", "give --data to predict the whole run", values)
        return
    steps = config.epochs * steps_in_epoch(len(subject.images), config.batch_size)
    shares = 1 if subject.device.type == "cpu" else subject.processes  # processes on a CPU share its cores
    seconds = steps * timing.slowest / shares
    yield judged(
        "time",
        seconds < 86400 * _DAYS,
        f"{step}; {counted(steps, 'step')} take about {duration(seconds)}"
        f"{f' on {shares} GPUs, without communication' if shares > 1 else ''}",
        "use more or faster devices, fewer epochs or smaller views; `carp train --dry-run` suggests settings",
        otherwise="warn",
        values={**values, "steps": steps, "hours": seconds / 3600},
    )
