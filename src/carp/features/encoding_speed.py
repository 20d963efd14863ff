"""How long an encoder takes for an image on this machine, measured with a few of them."""

import time
from collections.abc import Generator
from contextlib import closing

from carp.features.extract import FeatureBatch


def time_batches(batches: Generator[FeatureBatch], seconds: float) -> tuple[float, int]:
    """Encode batches for about `seconds`; return the seconds per image and the number of features.

    The first batch includes the set-up and counts only if there is no other.
    """
    ends, images, features = [time.perf_counter()], list[int](), 0
    with closing(batches):
        for batch in batches:
            ends.append(time.perf_counter())
            images.append(len(batch.indices) + len(batch.unreadable))
            features = max(features, batch.features.shape[1])
            if ends[-1] - ends[0] > seconds:
                break
    first = 1 if len(images) > 1 else 0
    return (ends[-1] - ends[first]) / sum(images[first:]), features
