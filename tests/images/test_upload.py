"""Views on their way to a GPU: the same tensors arrive, once per view and step, one step ahead.

There is no GPU here: `sent_ahead` sends to a list instead, and a pretended device counts what a step moves.
"""

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from carp.config import resolve
from carp.errors import DataError
from carp.images.loading.loader import Batch
from carp.images.loading.upload import sent_ahead, uploaded
from carp.model.carp import Carp
from carp.readiness.pretended_device import MPS, OnDevice, pretended
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.helpers import TINY

CPU = torch.device("cpu")


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    views = [torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=generator) for _ in range(2)]
    return Batch(step, 0, torch.arange(16).numpy(), views, 16)


class Sender:
    """Notes what is sent and what is received."""

    def __init__(self) -> None:
        self.events = list[str]()

    def send(self, batch: Batch) -> Callable[[], Batch]:
        self.events.append(f"send {batch.step}")

        def receive() -> Batch:
            self.events.append(f"receive {batch.step}")
            return batch

        return receive


def test_every_batch_is_sent_while_the_one_before_is_used() -> None:
    sender, used = Sender(), list[Batch]()
    for found in sent_ahead(map(batch, range(3)), sender.send):
        sender.events.append(f"use {found.step}")
        used.append(found)
    assert sender.events == [
        "send 0",
        *("receive 0", "send 1", "use 0"),
        *("receive 1", "send 2", "use 1"),
        *("receive 2", "use 2"),
    ]
    for step, found in enumerate(used):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found.views, batch(step).views, strict=True))


def test_images_that_cannot_be_read_end_the_run_in_their_own_turn() -> None:
    def broken() -> Generator[Batch]:
        yield batch(0)
        yield batch(1)
        raise DataError("the images are gone.")

    used = []
    with pytest.raises(DataError, match="the images are gone"):
        for found in sent_ahead(broken(), Sender().send):
            used.append(found.step)
    assert used == [0, 1]


def test_on_a_cpu_batches_pass_through_and_the_loader_is_closed() -> None:
    closed = list[bool]()

    def batches() -> Generator[Batch]:
        try:
            yield batch(0)
            yield batch(1)
        finally:
            closed.append(True)

    found = uploaded(batches(), CPU)
    first = next(found)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first.views, batch(0).views, strict=True))
    found.close()
    assert closed == [True]


class Uploads(TorchFunctionMode):
    """Counts images that are moved from the host to the device."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "to" and _is_image(args[0]) and MPS in args:
            self.count += 1
        return func(*args, **(kwargs or {}))


def _is_image(value: Tensor) -> bool:
    return not isinstance(value, OnDevice) and value.ndim == 4 and value.dtype == torch.uint8


@pytest.mark.parametrize("before", [False, True], ids=["on the host", "uploaded before"])
def test_a_step_moves_no_views_that_were_uploaded_before(before: bool) -> None:
    """Exact micro-batches are embedded twice: without an upload of the whole view, each would be moved twice."""
    config = resolve({**TINY, "channels_last": False, "micro_batch": 4}, num_images=64)
    with pretended() as device:
        model = Carp(config).to(device).train()
        stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, device)
        with Uploads() as uploads:
            given = batch(0)
            if before:
                given = Batch(0, 0, given.indices, [view.to(device) for view in given.views], 16)
            loss = stepper(given).loss
    assert uploads.count == (2 if before else 2 * 4 * 2)
    assert loss > 0
