"""Division of a batch into micro-batches, and `micro_batch: auto`, the largest size that fits into memory."""

import torch

from carp.compute import distributed
from carp.config import Config
from carp.errors import ConfigError
from carp.images.loading.loader import Batch
from carp.training.accumulate import MicroBatch
from carp.training.planning.estimate import estimate
from carp.training.planning.memory_check import ROOM, memory_for_training


def choose_micro_batch(config: Config, device: torch.device) -> int | None:
    """Return the largest micro-batch that fits into the memory of every process; None if the batch fits undivided."""
    size = largest_micro_batch(config, ROOM * memory_for_training(device))
    smallest = -distributed.all_reduce_max([-size])[0]
    return None if smallest == distributed.largest_share(config.batch_size) else smallest


def largest_micro_batch(config: Config, limit: float, *, on_gpu: bool | None = None) -> int:
    """Divide a process's share of the batch by 1, 2, 4, … until its step needs at most `limit` bytes.

    If nothing fits, return the smallest size: the estimate may be wrong, and if it is right, an allocation fails.
    """
    batch = distributed.largest_share(config.batch_size)
    halved: list[int] = [-(-batch // 2**n) for n in range(max(1, batch.bit_length() - 1))]
    sizes = [size for size in halved if batch % size != 1]  # batch norm needs at least two images
    for size in sizes:
        if estimate(config.model_copy(update={"micro_batch": size}), on_gpu=on_gpu).total_bytes <= limit:
            break
    return size


def divide(batch: Batch, micro_batch: int | None) -> list[MicroBatch]:
    """Divide a batch into micro-batches of at most `micro_batch` images, equally many in every process."""
    size = micro_batch or batch.num_images
    world = distributed.world_size()
    if world == 1:
        parts = zip(*(torch.split(view, size) for view in batch.views), strict=True)
        return [MicroBatch(views, len(views[0])) for views in parts]
    number = _number(batch.num_images, size)
    shares = [distributed.share(batch.num_images, rank) for rank in range(world)]
    images = [sum(_size(last - first, number, i) for first, last in shares) for i in range(number)]
    parts = zip(*(torch.tensor_split(view, number) for view in batch.views), strict=True)
    return [MicroBatch(views, count) for views, count in zip(parts, images, strict=True)]


def check_division(config: Config) -> None:
    """Raise if a process would get no image, or batch norm a single one."""
    world, batch = distributed.world_size(), config.batch_size
    if world == 1:
        return
    if batch < world:
        raise ConfigError(f"batch_size must be at least the number of processes ({world}), received {batch}.")
    if config.shards > 1 and config.shards % world:
        raise ConfigError(
            f"the number of processes must divide prototype_shards ({config.shards}), received {world} processes."
        )
    number = _number(batch, config.micro_batch or batch)
    if not config.sync_batch_norm and _size(batch // world, number, number - 1) < 2:
        raise ConfigError(
            f"a process would get a single image at a time, but batch norm needs two: batch_size={batch}, "
            f"micro_batch={config.micro_batch}, {world} processes. Set sync_batch_norm=true, or raise batch_size."
        )


def _number(images: int, size: int) -> int:
    return -(-distributed.largest_share(images) // size)


def _size(images: int, number: int, which: int) -> int:
    """Return the number of images in one of `number` parts, as `torch.tensor_split` makes them."""
    return images // number + (which < images % number)
