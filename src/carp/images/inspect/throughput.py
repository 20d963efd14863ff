"""Measures how fast this machine turns images into views, on a sample."""

import os
import time
from contextlib import closing
from dataclasses import dataclass

from carp.config import LoaderSettings
from carp.images.loading.in_memory import hold_in_memory, is_held
from carp.images.loading.loader import make_loader
from carp.images.source import Source
from carp.images.sources.subset import at_random

_IMAGES, _AT_A_TIME, _SECONDS = 256, 16, 3.0


@dataclass(frozen=True)
class Throughput:
    """Seconds per image."""

    once: float  # to read it into memory before the first epoch; 0 for photographs, which are not held in memory
    each_epoch: float  # to decode and augment, or only to augment, in one process
    by_workers: bool  # whether worker processes share the work

    def epoch(self, num_images: int) -> dict[int, float]:
        """Return the seconds per epoch by number of workers, up to the number of cores; 0 where no workers are used."""
        if not self.by_workers:
            return {0: num_images * self.each_epoch}
        cores = os.cpu_count() or 1
        counts = sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores})
        return {workers: num_images * self.each_epoch / workers for workers in counts}


def measure_throughput(source: Source, config: LoaderSettings) -> Throughput:
    """Render views of a sample for a few seconds in this process, as training would."""
    few = at_random(source, _IMAGES, seed=0)
    small = is_held(config)
    size = min(len(few), config.batch_size if small else _AT_A_TIME)
    config = config.model_copy(update={"batch_size": size, "workers": 0, "max_bad_share": 1.0})
    start = time.perf_counter()
    source = hold_in_memory(few, config.global_size) if small else few
    once = (time.perf_counter() - start) / len(few) if small else 0.0
    loader = make_loader(source, config)
    ends = [time.perf_counter()]
    with closing(loader.batches(0, 1 + max(4, 2 * loader.steps_per_epoch))) as batches:
        for _ in batches:
            ends.append(time.perf_counter())
            if ends[-1] - ends[0] > _SECONDS:
                break
    ends = ends[1:] if len(ends) > 2 else ends  # the first batch includes the setup
    return Throughput(once, (ends[-1] - ends[0]) / (len(ends) - 1) / size, not small)
