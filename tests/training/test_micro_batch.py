"""`micro_batch: auto` takes the largest micro-batch that the memory allows, and a run keeps it."""

import pytest
import torch
import yaml

import carp
from carp.compute.device import available_memory
from carp.config import resolve
from carp.training import micro_batch
from carp.training.planning.estimate import estimate
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


def config(**settings):
    return resolve({"encoder": "resnet18", "num_prototypes": 1024, **settings}, num_images=10_000)


def with_memory(monkeypatch, size):
    """Only the choice of the micro-batch sees this much memory; a run still checks the machine's own."""
    monkeypatch.setattr(micro_batch, "memory_for_training", lambda _device: size)


def test_a_batch_that_fits_is_not_divided(monkeypatch):
    with_memory(monkeypatch, 10**15)
    assert micro_batch.choose_micro_batch(config(batch_size=256), CPU) is None


@pytest.mark.parametrize("batch_size", [64, 50, 33, 25])
def test_the_largest_that_fits_is_taken(monkeypatch, batch_size):
    whole = config(batch_size=batch_size)
    with_memory(monkeypatch, estimate(whole).total_bytes)  # of which a part is left free
    size = micro_batch.choose_micro_batch(whole, CPU)
    assert size == -(-batch_size // 2)
    assert estimate(config(batch_size=batch_size, micro_batch=size)).total_bytes < estimate(whole).total_bytes


@pytest.mark.parametrize("batch_size", [2, 3, 25, 64, 4096])
def test_without_memory_it_is_the_smallest_that_batch_norm_can_take(monkeypatch, batch_size):
    with_memory(monkeypatch, 0)
    size = micro_batch.choose_micro_batch(config(batch_size=batch_size), CPU)
    assert size is None or (2 <= size < batch_size and batch_size % size != 1)


def test_exact_accumulation_keeps_the_head_of_the_whole_batch():
    exact, fast = (config(batch_size=1024, micro_batch=64, accumulate=kind) for kind in ("exact", "fast"))
    assert estimate(exact).head_bytes > estimate(fast).head_bytes
    assert estimate(exact).activation_bytes == estimate(fast).activation_bytes


def test_the_memory_of_this_machine_is_between_a_megabyte_and_what_it_has():
    assert 2**20 < available_memory(CPU) < 2**50


def test_a_run_keeps_the_micro_batch_it_began_with(monkeypatch, tmp_path):
    settings = {**TINY, "micro_batch": "auto", "epochs": 1}
    with_memory(monkeypatch, 0)
    first = carp.train(tiny_images(), tmp_path / "run", quiet=True, **settings)
    chosen = first.config.micro_batch
    assert chosen is not None
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["micro_batch"] == chosen
    with_memory(monkeypatch, 10**15)
    assert carp.train(tiny_images(), tmp_path / "run", quiet=True, **settings).config.micro_batch == chosen
