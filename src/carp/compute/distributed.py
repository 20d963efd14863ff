"""The processes that share a task under torchrun; for one process alone every call is cheap and does nothing.

Only this file knows torch.distributed. A process that waits in vain for another one gets a `ProcessError`; of several
processes that end with an error the first one tells it (`first_to_tell`).
"""

import atexit
import json
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from carp.compute.parent import follow_launcher
from carp.errors import ProcessError

_PATIENCE = timedelta(hours=12)  # of a task without a time-out: one process may wait for the slowest part of another
_SECONDS_TO_MEET = 600.0  # from the start of the first process to that of the last
_SECONDS_TO_END = 120  # after a signal: a step and a checkpoint; then torchrun kills what is left
_groups = count()
_BUCKET_BYTES = 2**25  # tensors travel together in parcels of about this size


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes share the task."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_here() -> int:
    """How many of them share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the process that writes and speaks."""
    return rank() == 0


def start(device: torch.device, *, timeout: timedelta = _PATIENCE) -> None:
    """Join the other processes; from here on a process that is not heard of for `timeout` ends the task."""
    if world_size() == 1 or dist.is_initialized():
        return
    follow_launcher()
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = PrefixStore(f"group {next(_groups)}", _store())  # a second group must not find the first one's marks
    with _explained():
        dist.init_process_group(backend, store=store, rank=rank(), world_size=world_size(), timeout=timeout)
    atexit.register(stop)  # its threads must not outlive the interpreter: now and then that aborts the process


def launch(words: Sequence[str], *, processes: int) -> int:
    """Run a program in several processes of this machine with torchrun; the exit code of the first that fails, or 0.

    Raises if it was killed.
    """
    from torch.distributed import run as torchrun  # noqa: PLC0415 - slow, and only the launcher needs it
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    logging.disable()  # torchrun's report of every failure and signal; this process does nothing else
    options = ["--standalone", f"--nproc-per-node={processes}", f"--shutdown-timeout={_SECONDS_TO_END}"]
    try:
        torchrun.run(torchrun.parse_args([*options, *words]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        process, failure = error.get_first_failure()
        if failure.exitcode < 0:  # it could not tell by itself
            raise ProcessError(
                f"process {process} of {processes} was ended by {signal.Signals(-failure.exitcode).name}, by hand or "
                "because the memory was full. The same command continues the run."
            ) from None
        return failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def stop() -> None:
    """Take leave of the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def barrier() -> None:
    """Wait until every process is here."""
    if world_size() == 1:
        return
    with _together():
        dist.all_reduce(torch.zeros(1))  # unlike a barrier of NCCL it needs no device


def share(number: int, of_rank: int) -> tuple[int, int]:
    """First and last of `number` consecutive things that are one process's, as even as possible."""
    return number * of_rank // world_size(), number * (of_rank + 1) // world_size()


def own_share(number: int) -> slice:
    """Those of `number` consecutive things that are this process's."""
    return slice(*share(number, rank()))


def largest_share(number: int) -> int:
    """How many of `number` things the process with most of them has."""
    return -(-number // world_size())


def all_reduce_sum(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor by its sum over all processes; small ones travel together."""
    if world_size() == 1:
        return
    with _together():
        for bucket in _buckets(tensors):
            if len(bucket) == 1 and bucket[0].is_contiguous():
                dist.all_reduce(bucket[0])
                continue
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            for tensor, part in zip(bucket, torch.split(flat, [t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type and device, until a bucket is full."""
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
    """The largest of every number over all processes."""
    if world_size() == 1:
        return list(numbers)
    all_numbers = torch.tensor(numbers, dtype=torch.int64)
    with _together():
        dist.all_reduce(all_numbers, op=dist.ReduceOp.MAX)
    return [int(number) for number in all_numbers]


def all_gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes, those of the first one first; each may have another number of them."""
    if world_size() == 1:
        return rows
    counts = _counts(len(rows))
    padded = rows.new_zeros(max(counts), *rows.shape[1:])
    padded[: len(rows)] = rows
    joined = rows.new_empty(len(counts) * len(padded), *rows.shape[1:])
    with _together():
        dist.all_gather_into_tensor(joined, padded)
    return torch.cat([part[:own] for part, own in zip(torch.split(joined, len(padded)), counts, strict=True)])


def join_rows_at_first(rows: Tensor) -> Tensor:
    """The rows of all processes, which must have the same number of them, in the first process; elsewhere own rows."""
    if world_size() == 1:
        return rows
    joined = rows.new_empty(world_size(), *rows.shape) if is_first() else None
    with _together():
        dist.gather(rows.contiguous(), list(joined.unbind()) if joined is not None else None, dst=0)
    return rows if joined is None else joined.flatten(0, 1)


def reduce_scatter_rows(rows: Tensor, own: int) -> Tensor:
    """The sum over all processes of the rows that all processes hold; every process gets the sum of its `own` rows."""
    if world_size() == 1:
        return rows
    parts = exchange_rows(rows, _counts(own), [own] * world_size())  # gloo's reduce_scatter would send twice as much
    return parts.view(world_size(), own, *rows.shape[1:]).sum(dim=0)


def exchange_rows(rows: Tensor, to_send: Sequence[int], to_receive: Sequence[int]) -> Tensor:
    """Send the first `to_send[0]` rows to process 0, the next to process 1, …; return what the others sent."""
    received = rows.new_empty(sum(to_receive), *rows.shape[1:])
    with _together():
        dist.all_to_all_single(received, rows.contiguous(), list(to_receive), list(to_send))
    return received


def gather(value: Any) -> list[Any]:
    """What every process has to say, in their order; travels as JSON, and costs next to nothing when all say None."""
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


def first_to_tell(exit_code: int) -> tuple[bool, int]:
    """Whether no other process has ended with an error, and the exit code of the first that did.

    The others wait for a process that failed, and fail in turn: only the first one's error is the cause.
    """
    if world_size() == 1:
        return True, exit_code
    mine = f"{rank()} {exit_code}"
    try:
        told = _store().compare_set("told", "", mine).decode()
    except (ProcessError, RuntimeError, ValueError):  # the process that keeps the store is gone
        return True, exit_code
    return told == mine, int(told.split()[1])


@cache
def _store() -> Any:
    """Where processes find each other; under torchrun its agent keeps it, and so it outlives them."""
    with _explained():
        store, _, _ = next(iter(rendezvous("env://", rank(), world_size())))
        return PrefixStore(_agree_on_name(store), store)


def _agree_on_name(store: Any) -> str:
    """A name that no processes before these had: after a restart the store still holds what those wrote.

    The first process makes a name up. Another one answers with a word of its own under the name that it finds, and only
    when that word is confirmed it knows that the name is not an old one.
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
    """Something that all processes do at once; joins them if that was not done."""
    start(torch.device("cpu"))
    with _explained():
        yield


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the errors of a process that waits in vain into one line."""
    try:
        yield
    except RuntimeError as error:
        words = str(error).lower()
        if "timed out" in words or "timeout" in words:
            raise ProcessError(
                f"process {rank()} of {world_size()} waited in vain for another one, which hangs or is too slow "
                "(timeout_minutes). The checkpoints are intact; the same command continues the run."
            ) from error
        if any(word in words for word in ("connection", "peer", "socket", "broken pipe", "remote process")):
            raise ProcessError(
                f"process {rank()} of {world_size()} lost another one, which was killed or is out of reach. The "
                "checkpoints are intact; the same command continues the run."
            ) from error
        raise
