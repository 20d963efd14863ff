"""What every method must beat: the encoder with its initial weights, and the pixels without an encoder."""

from collections.abc import Sequence

import torch
from torch import nn

from benchmarks.compare.method import encoder_of
from carp.config import Config
from carp.features.extract import RAW_PIXELS_SIDE
from carp.random import Purpose, seed_of
from carp.studies.points import Job, Point

BASELINE = "baseline"
UNTRAINED, PIXELS = "untrained", "raw pixels"
TITLES = {UNTRAINED: "untrained encoder", PIXELS: "raw pixels"}
_COST = 0.3  # of a job with training


def baseline_jobs(seeds: Sequence[int]) -> list[Job]:
    """Return one job for the pixels, and one per seed for the untrained encoder."""
    points = {name: Point(name, BASELINE, cost=_COST) for name in TITLES}
    return [*(Job(points[UNTRAINED], seed) for seed in seeds), Job(points[PIXELS], seeds[0])]


def is_baseline(job: Job) -> bool:
    """Return whether a job trains nothing."""
    return job.point.variant == BASELINE


def baseline_of(name: str, config: Config) -> tuple[nn.Module, int]:
    """Return the encoder of a baseline, and the size of its images. All methods start from the untrained one."""
    if name == PIXELS:
        return nn.Flatten(), min(config.global_size, RAW_PIXELS_SIDE)
    torch.manual_seed(seed_of(config.seed, Purpose.WEIGHTS))
    encoder = encoder_of(config)[0].to(memory_format=torch.channels_last)
    return encoder, config.global_size
