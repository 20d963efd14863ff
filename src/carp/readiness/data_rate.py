"""How fast images become views, and views reach the device."""

import time
from collections.abc import Iterator

import torch

from carp.compute.threads import available_cores
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.throughput import measure_throughput
from carp.images.loading.loader import normalise
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject

_TRIED = 16  # images per upload


def check_data_rate(subject: Subject) -> Iterator[Finding]:
    """Yield images per second and core, against the rate at which steps use them, and images per second uploaded."""
    config = subject.config
    if subject.given:
        with pixel_limit(config.max_image_pixels):
            speed = measure_throughput(subject.images, config)
        each = 1 / speed.each_epoch
        workers = min(available_cores(), max(config.workers, subject.processes)) if speed.by_workers else 1
        rate = each * workers
        needed = _needed(subject)
        yield judged(
            "images",
            subject.device.type == "cpu" or needed is None or rate >= needed,
            f"{each:,.0f} images/s per core from {subject.images.name}, {rate:,.0f} with {workers}"
            f"{'' if needed is None else f'; training uses {needed:,.1f}'}",
            "the GPUs would wait for images: raise workers, use a machine with more cores, or store smaller images",
            otherwise="warn",
            values={"images_per_second_per_core": each, "images_per_second": rate},
        )
    else:
        yield Finding("images", "n/a", "not examined", "give the images of the planned run with --data")
    uploaded = _uploads(subject)
    yield Finding(
        "upload",
        "pass",
        f"{uploaded:,.0f} images/s moved to {subject.device} and normalised",
        values={"images_per_second": uploaded},
    )


def _needed(subject: Subject) -> float | None:
    """Return the images per second that all processes use; on a CPU they share its cores."""
    if subject.seconds_per_step is None:
        return None
    processes = 1 if subject.device.type == "cpu" else subject.processes
    return processes * subject.config.batch_size / subject.seconds_per_step


def _uploads(subject: Subject) -> float:
    config, device = subject.config, subject.device
    sizes = [config.global_size] * 2 + [config.local_size] * config.local_views
    views = [torch.zeros(_TRIED, 3, size, size, dtype=torch.uint8) for size in sizes]
    seconds = []
    for _ in range(4):  # the first includes the setup
        start = time.perf_counter()
        for view in views:
            normalise(view, device, channels_last=config.channels_last)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return _TRIED / min(seconds[1:])
