"""A step makes the host wait for the device at most twice: once for the head's check, once for the loss."""

from typing import Any

import pytest
import torch

from carp.config import resolve
from carp.images.loading.loader import Batch
from carp.model.carp import Carp
from carp.readiness.pretended_device import pretended, waits
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.helpers import TINY

MOST = 2


def steps(count: int, **changes: Any) -> list[list[str]]:
    """What the host waited for in each of some steps."""
    config = resolve({**TINY, "channels_last": False, "block_size": 8, **changes}, num_images=64)
    torch.manual_seed(0)
    views = [torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8) for _ in range(2)]
    with pretended() as device:
        model = Carp(config).to(device).train()
        stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 4), config, device)
        found = []
        for step in range(count):
            waits.clear()
            stepper(Batch(step, 0, torch.arange(16).numpy(), views, 16))
            found.append(list(waits))
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimiser": "adamw", "lr": 0.001},
        {"optimiser": "sgd", "clip_gradient": 1.0},
        {"micro_batch": 4},
        {"teacher_momentum": 0},
        {"reading": "authors"},
        {"block_size": 1},
    ],
    ids=["lars", "adamw", "sgd, clipped", "exact micro-batches", "siamese", "authors", "blocks of one"],
)
def test_at_most_two_waits_per_step(changes: dict[str, Any]) -> None:
    for found in steps(3, **changes):
        assert 1 <= len(found) <= MOST, found


def test_every_pass_of_the_head_waits_once() -> None:
    """Micro-batches with losses of their own are passes of their own."""
    (found,) = steps(1, micro_batch=4, accumulate="fast")
    assert len(found) == 4 + 1


def test_underflow_is_what_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pass checks each of its chunks, so that this test would notice if nothing were counted."""
    monkeypatch.setattr("carp.model.head._UNDERFLOW", {torch.float32: 2.0})
    monkeypatch.setattr("carp.model.head._CHUNK_ELEMENTS", {"cpu": 1, "other": 1})
    (found,) = steps(1)
    assert len(found) == 1 + 64 // 8 + 1
