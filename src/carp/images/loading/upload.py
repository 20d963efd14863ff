"""Views on their way to a GPU: one upload per view and step, while the GPU computes the step before.

The views of a step stay bytes; they are copied from pinned memory by a stream of their own, and divided into
micro-batches on the GPU. So the views of two steps are on the GPU at a time.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from carp.errors import DataError
from carp.images.loading.loader import Batch

STEPS_HELD = 2  # whose views are on the GPU at a time
Receive = Callable[[], Batch]


def uploaded(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    """Yield the same batches with their views on the GPU. For other devices they stay as they are."""
    with closing(batches):
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            yield from sent_ahead(batches, partial(_send, device=device, stream=stream))
        else:
            yield from batches


def sent_ahead(batches: Iterator[Batch], send: Callable[[Batch], Receive]) -> Iterator[Batch]:
    """Send every batch before the one before it is used. An error while a batch is prepared is raised in its turn."""

    def next_sent() -> Receive | None:
        try:
            batch = next(batches, None)
        except DataError as error:
            return partial(_fail, error)
        return None if batch is None else send(batch)

    coming = next_sent()
    while coming is not None:
        batch = coming()
        coming = next_sent()
        yield batch


def _fail(error: DataError) -> Batch:
    raise error


def _send(batch: Batch, *, device: torch.device, stream: torch.cuda.Stream) -> Receive:
    """Start the upload of a batch; the returned function makes the current stream wait for it."""
    with torch.cuda.stream(stream):
        views = [_pinned(view).to(device, non_blocking=True) for view in batch.views]

    def receive() -> Batch:
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for view in views:
            view.record_stream(current)  # its memory was allocated for the other stream
        return replace(batch, views=views)

    return receive


def _pinned(view: Tensor) -> Tensor:
    return view if view.is_pinned() else view.pin_memory()
