"""`micro_batch: auto`: the largest micro-batch whose step fits into memory."""

import torch

from carp.config import Config
from carp.device import available_memory
from carp.training.estimate import estimate

_SHARE = 0.7  # of the available memory; the rest is for the data loader and for what an estimate misses


def choose_micro_batch(config: Config, device: torch.device) -> int | None:
    """The batch divided by 1, 2, 4, … until its step fits; None when it fits undivided.

    When nothing fits this is the smallest: the estimate may be wrong, and the system will tell.
    """
    limit, batch = _SHARE * available_memory(device), config.batch_size
    halved = [-(-batch // 2**n) for n in range(batch.bit_length() - 1)]
    sizes = [size for size in halved if batch % size != 1]  # batch norm cannot take a single image
    for size in sizes:
        if estimate(config.model_copy(update={"micro_batch": size})).total_bytes <= limit:
            break
    return None if size == batch else size
