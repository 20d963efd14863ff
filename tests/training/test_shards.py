"""Shards of prototypes in one process; tests/processes has several."""

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.errors import ConfigError
from carp.training.loop import build_model
from carp.training.micro_batch import check_division
from carp.training.optimiser import build_optimiser
from carp.training.shards import exchange, moves, partition_inside_shards
from tests.helpers import TINY

CPU = torch.device("cpu")


def config(**settings):
    shards = {"prototypes": "sharded", "prototype_shards": 4, "exchange_steps": 5}
    return resolve({**TINY, **shards, **settings}, num_images=64)


def test_blocks_stay_inside_shards_and_hold_every_prototype_once():
    blocks = [partition_inside_shards(config(), step) for step in (0, 1)]
    for partition in blocks:
        assert partition.shape == (8, 8)
        assert partition.flatten().sort().values.tolist() == list(range(64))
        assert all(len(set((row // 16).tolist())) == 1 for row in partition)
    assert not torch.equal(*blocks)


def test_an_exchange_moves_the_same_number_of_rows_out_of_and_into_every_shard():
    seen = set()
    for step in (4, 9, 14):
        places, origins = moves(config(exchange_share=0.25), step)
        assert sorted(places) == sorted(origins)
        assert len(places) == len(set(places.tolist())) == 16
        assert np.bincount(places // 16).tolist() == [4, 4, 4, 4]
        (distance,) = set(((places // 16 - origins // 16) % 4).tolist())
        seen.add(distance)
    assert seen == {1, 2, 3}, "every shard meets every other"


def test_an_exchange_carries_directions_teachers_and_moments_together():
    model = build_model(config(), CPU)
    student, teacher = (branch.assigner.directions_KD for branch in (model.student, model.teacher))
    optimiser = build_optimiser(model, config())
    marks = torch.arange(64.0)[:, None].expand(64, 16).contiguous()
    optimiser.state[student]["momentum_buffer"] = marks.clone()
    for tensor in (student, teacher):
        tensor.data = marks.clone()
    exchange(model, optimiser, config(), 3)  # not yet
    assert torch.equal(student, marks)
    exchange(model, optimiser, config(), 4)
    assert torch.equal(student, teacher)
    assert torch.equal(student, optimiser.state[student]["momentum_buffer"])
    assert student[:, 0].sort().values.tolist() == list(range(64))
    moved = (student[:, 0] // 16 != marks[:, 0] // 16).reshape(4, 16).sum(dim=1)
    assert moved.tolist() == [8, 8, 8, 8]


def test_a_fixed_partition_is_never_mixed():
    model = build_model(config(partition="fixed"), CPU)
    before = model.student.assigner.directions_KD.clone()
    exchange(model, build_optimiser(model, config()), config(partition="fixed"), 4)
    assert torch.equal(model.student.assigner.directions_KD, before)


@pytest.mark.parametrize(
    ("settings", "world", "told"),
    [
        ({"prototype_shards": 3}, 1, "multiple of prototype_shards x block_size (3 x 8), received 64"),
        ({}, 3, "the number of processes must divide prototype_shards (4), received 3 processes"),
        ({"batch_size": 2}, 4, "batch_size must be at least the number of processes (4), received 2"),
        ({"batch_size": 6, "sync_batch_norm": False}, 4, "a single image at a time"),
    ],
)
def test_a_mistake_is_told(settings, world, told, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    with pytest.raises(ConfigError) as mistake:
        check_division(config(**settings))
    assert told in str(mistake.value)
