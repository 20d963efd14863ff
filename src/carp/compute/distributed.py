"""The processes that share a task under torchrun; with a single process, every call is cheap and does nothing.

Only this module uses torch.distributed. A process that loses another one, or waits for it too long, gets a
`ProcessError`. If several processes fail, only the first one prints its error (`first_to_fail`).
"""

import atexit
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from carp.compute.parent import follow_launcher
from carp.errors import ProcessError

_PATIENCE = timedelta(hours=12)  # for tasks without a timeout setting: one process may wait for long work of another
_SECONDS_TO_MEET = 600.0  # between the start of the first process and that of the last
_SECONDS_BETWEEN_LOOKS = 0.1  # of processes that wait for the first one
_FAILED = "first to fail"  # key of the store
_groups = count()
_turns = count()
_BUCKET_BYTES = 2**25  # tensors are sent together in buckets of about this size


T = TypeVar("T")


def rank() -> int:
    """Return the index of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes that share the task."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_here() -> int:
    """Return the number of processes of the task on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def share_here(number: int) -> int:
    """Return this process's share of what the processes on this machine divide: at least 1, unless it is 0."""
    return max(min(number, 1), number // processes_here())


def is_first() -> bool:
    """Return whether this is the first process, the one that writes files and prints."""
    return rank() == 0


def start(device: torch.device, *, timeout: timedelta = _PATIENCE) -> None:
    """Join the other processes; from now on, the task fails if a process does not respond for `timeout`."""
    if world_size() == 1 or dist.is_initialized():
        return
    follow_launcher()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = PrefixStore(f"group {next(_groups)}", _store())  # a second group must not see the keys of the first
    with explained():
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world_size(), timeout=timeout)
    atexit.register(stop)  # threads that outlive the interpreter occasionally abort the process


def stop() -> None:
    """Leave the group of processes."""
    if dist.is_initialized():
        gloo = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        dist.destroy_process_group()
        del gloo  # must go last: only its own destructor releases the GIL, which its threads may be waiting for


def barrier() -> None:
    """Wait until every process has reached this call."""
    if world_size() == 1:
        return
    with _together():
        dist.all_reduce(torch.zeros(1))  # unlike NCCL's barrier, this needs no device


def first_before_others(work: Callable[[], T]) -> T:
    """Call a function in the first process, then in all others, which use what the first one has stored.

    The others may wait for hours, unlike in a collective operation, but not for a process that has failed.
    """
    if world_size() == 1:
        return work()
    store, turn = _store(), f"turn {next(_turns)}"
    if is_first():
        result = work()
        store.set(turn, "done")
        return result
    with explained():
        while not store.check([turn]):
            if store.check([_FAILED]):
                raise ProcessError(f"process {rank()} of {world_size()} stopped, because another process failed.")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    return work()


def share(number: int, of_rank: int) -> tuple[int, int]:
    """Return the start and end of one process's share of `number` consecutive items; shares are as even as possible."""
    return number * of_rank // world_size(), number * (of_rank + 1) // world_size()


def own_share(number: int) -> slice:
    """Return the slice of `number` consecutive items that belongs to this process."""
    return slice(*share(number, rank()))


def largest_share(number: int) -> int:
    """Return the size of the largest share of `number` items."""
    return -(-number // world_size())


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor by its sum over all processes; small tensors are sent together."""
    if world_size() == 1:
        return
    for bucket in buckets(tensors):
        SumInFlight(bucket).wait()


class SumInFlight:
    """A sum over all processes that has been started: `wait` replaces every tensor by it.

    The tensors have the same type and device and travel as one. All processes start their sums in the same order.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        alone = len(self._tensors) == 1 and self._tensors[0].is_contiguous()
        with _together():
            self._sent = self._tensors[0] if alone else torch.cat([tensor.reshape(-1) for tensor in self._tensors])
            self._work: Any = dist.all_reduce(self._sent, async_op=True)

    def wait(self) -> None:
        """Wait for the sum; on a GPU its stream waits, not the host."""
        with explained():
            self._work.wait()
        if self._sent is not self._tensors[0]:
            parts = torch.split(self._sent, [tensor.numel() for tensor in self._tensors])
            for tensor, part in zip(self._tensors, parts, strict=True):
                tensor.copy_(part.view(tensor.shape))


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of the same type and device into buckets that are sent as one."""
    bucket, size = list[Tensor](), 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        alike = not bucket or (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if bucket and (not alike or size + nbytes > _BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield bucket


def all_reduce_max(numbers: Sequence[int]) -> list[int]:
    """Return the maximum of every number over all processes."""
    if world_size() == 1:
        return list(numbers)
    all_numbers = torch.tensor(numbers, dtype=torch.int64)
    with _together():
        dist.all_reduce(all_numbers, op=dist.ReduceOp.MAX)
    return [int(number) for number in all_numbers]


def all_gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes in the order of the processes; their numbers of rows may differ."""
    if world_size() == 1:
        return rows
    counts = _counts(len(rows))
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    joined = rows.new_empty(len(counts) * len(padded), *rows.shape[1:])
    with _together():
        dist.all_gather_into_tensor(joined, padded)
    return torch.cat([part[:own] for part, own in zip(torch.split(joined, len(padded)), counts, strict=True)])


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes on the first process, and a process's own rows on the others.

    All processes must have the same number of rows.
    """
    if world_size() == 1:
        return rows
    joined = rows.new_empty(world_size(), *rows.shape) if is_first() else None
    with _together():
        dist.gather(rows.contiguous(), list(joined.unbind()) if joined is not None else None, dst=0)
    return rows if joined is None else joined.flatten(0, 1)


def reduce_scatter_rows(rows: Tensor, own: int) -> Tensor:
    """Sum rows over all processes; every process receives the sums of its `own` rows."""
    if world_size() == 1:
        return rows
    parts = exchange_rows(rows, _counts(own), [own] * world_size())  # gloo's reduce_scatter would send twice as much
    return parts.view(world_size(), own, *rows.shape[1:]).sum(dim=0)


def exchange_rows(rows: Tensor, to_send: Sequence[int], to_receive: Sequence[int]) -> Tensor:
    """Send the first `to_send[0]` rows to process 0, the next to process 1, and so on; return the received rows."""
    received = rows.new_empty(sum(to_receive), *rows.shape[1:])
    with _together():
        dist.all_to_all_single(received, rows.contiguous(), list(to_receive), list(to_send))
    return received


def gather(value: Any) -> list[Any]:
    """Return the value of every process, in order; values are sent as JSON, and it is cheap if all values are None."""
    if world_size() == 1:
        return [value]
    text = b"" if value is None else json.dumps(value).encode()
    longest = all_reduce_max([len(text)])[0]
    if longest == 0:
        return [None] * world_size()
    letters = all_gather_rows(torch.tensor(list(text.ljust(longest)), dtype=torch.uint8)[None])
    texts = [bytes(row.tolist()).strip() for row in letters]
    return [json.loads(one) if one else None for one in texts]


def _counts(own: int) -> list[int]:
    counts = torch.zeros(world_size(), dtype=torch.int64)
    counts[rank()] = own
    with _together():
        dist.all_reduce(counts)
    return [int(number) for number in counts]


def first_to_fail(exit_code: int) -> tuple[bool, int]:
    """Return whether this process is the first to fail, and the exit code of the first that did.

    After one process fails, the others wait for it and then fail too; only the first error is the cause.
    """
    if world_size() == 1:
        return True, exit_code
    mine = f"{rank()} {exit_code}"
    try:
        first = _store().compare_set(_FAILED, "", mine).decode()
    except (ProcessError, RuntimeError, ValueError):  # the process that keeps the store is gone
        return True, exit_code
    return first == mine, int(first.split()[1])


@cache
def _store() -> Any:
    """Return the store through which processes find each other; torchrun's agent keeps it, so it outlives them."""
    with explained():
        store, _, _ = next(iter(rendezvous("env://", rank(), world_size())))
        return PrefixStore(_agree_on_name(store), store)


def _agree_on_name(store: Any) -> str:
    """Agree on a name that is new to the store: after a restart, it still contains the keys of the previous processes.

    The first process chooses a random name. Every other process answers with a random word under the name that it
    finds; once the first process confirms that word, the name is known not to be an old one.
    """
    end = time.monotonic() + _SECONDS_TO_MEET
    word = uuid.uuid4().hex
    if is_first():
        store.set("name", word)
        for other in range(1, world_size()):
            _wait_for(partial(store.check, [f"{word}/{other}"]), end)
            store.set(f"{word}/{store.get(f'{word}/{other}').decode()}", "yes")
        return word
    name = ""

    def is_confirmed() -> bool:
        nonlocal name
        if store.check(["name"]) and (found := store.get("name").decode()) != name:
            name = found
            store.set(f"{name}/{rank()}", word)
        return bool(name) and bool(store.check([f"{name}/{word}"]))

    _wait_for(is_confirmed, end)
    return name


def _wait_for(condition: Callable[[], bool], end: float) -> None:
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("timed out")
        time.sleep(0.02)


@contextmanager
def _together() -> Iterator[None]:
    """Run a collective operation; joins the other processes first if necessary."""
    start(torch.device("cpu"))
    with explained():
        yield


@contextmanager
def explained() -> Iterator[None]:
    """Turn torch's errors about lost or hanging processes into a `ProcessError`.

    NCCL runs in the background: what went wrong in a collective operation may be raised by any later operation that
    waits for the device.
    """
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1:
            raise
        words = str(error).lower()
        if "timed out" in words or "timeout" in words:
            raise ProcessError(
                f"process {rank()} of {world_size()} timed out waiting for another process, which hangs or is too slow "
                "(timeout_minutes). The checkpoints are intact; the same command resumes the run."
            ) from error
        if any(word in words for word in ("connection", "peer", "socket", "broken pipe", "remote process")):
            raise ProcessError(
                f"process {rank()} of {world_size()} lost another process, which was killed or is unreachable. The "
                "checkpoints are intact; the same command resumes the run."
            ) from error
        if "nccl" in words:
            raise ProcessError(
                f"process {rank()} of {world_size()} was stopped by NCCL: {' '.join(str(error).split())[:300]}. Set "
                "NCCL_DEBUG=INFO for details; `carp doctor` tests the GPUs and their connection. The checkpoints are "
                "intact; the same command resumes the run."
            ) from error
        raise
