"""The rule behind `auto`: sizes that suit the number of images."""

import os

from pydantic import BaseModel

_ENOUGH_TO_HOLD_OUT = 300  # images


class Sizes(BaseModel):
    """The settings that depend on the number of images where a recipe has `auto`."""

    epochs: int
    batch_size: int
    num_prototypes: int
    block_size: int
    held_out: int


def sizes_for(num_images: int, *, started: bool = False) -> Sizes:
    """Return the sizes for a user's own images; a run that is `started` from weights needs fewer steps.

    - batch_size: the largest power of two up to an eighth of the images, from 16 to 256 (started: 128); all images if
      fewer than 16.
    - epochs: about one million images seen in total, from 20 to 400 epochs; started: 40,000 images, 3 to 100 epochs.
    - num_prototypes: a power of two near half the number of images, from 256 to 65,536 (the paper over-clusters).
    - block_size: the batch size, or the power of two below it: a block's mean assignment is estimated from the batch,
      and the larger the block, the less certain the assignments may be (docs/decisions/0005).
    - held_out: a tenth of the images, at most 500; none if there are fewer than 300, too few to compare.
    """
    largest, seen, fewest, most = (128, 40_000, 3, 100) if started else (256, 1_000_000, 20, 400)
    batch_size = min(largest, max(16, _power_of_two(num_images // 8)), max(2, num_images))
    return Sizes(
        epochs=min(most, max(fewest, round(seen / max(num_images, 1)))),
        batch_size=batch_size,
        num_prototypes=min(65_536, max(256, _power_of_two(num_images // 2))),
        block_size=_power_of_two(batch_size),
        held_out=min(500, num_images // 10) if num_images >= _ENOUGH_TO_HOLD_OUT else 0,
    )


def usable_cores() -> int:
    """Return the number of cores that this process may use: one worker per core prepares images."""
    return min(1024, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _power_of_two(n: int) -> int:
    return 1 << max(n, 1).bit_length() - 1
