"""The processes that share a task under torchrun; for one process alone every call is cheap and does nothing."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

_PATIENCE = timedelta(hours=12)  # one process may wait for the slowest part of another


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes share the task."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() == 1:
        return
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=_PATIENCE)
    dist.all_reduce(torch.zeros(1))  # unlike a barrier of NCCL it needs no device


def share(count: int, of_rank: int) -> tuple[int, int]:
    """First and last of `count` consecutive things that are one process's, as even as possible."""
    return count * of_rank // world_size(), count * (of_rank + 1) // world_size()
