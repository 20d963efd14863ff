"""Partitions: every prototype once, from the seed and the step only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carp import random_partition
from carp.config import Config
from carp.errors import ConfigError
from carp.model.partition import fixed_partition
from carp.training.step import Stepper

quick = settings(max_examples=60, deadline=None)
shapes = st.tuples(st.integers(1, 40), st.integers(1, 40))  # blocks, prototypes in a block


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@quick
@given(shape=shapes, seed=st.integers(0, 2**62))
def test_a_partition_is_a_permutation_of_all_prototypes(shape, seed):
    P, N = shape
    partition = random_partition(P * N, N, generator=seeded(seed))
    assert partition.shape == (P, N)
    assert partition.dtype == torch.int64
    assert sorted(partition.flatten().tolist()) == list(range(P * N))


@quick
@given(shape=shapes, seed=st.integers(0, 2**62))
def test_the_same_seed_gives_the_same_partition(shape, seed):
    P, N = shape
    first, second = (random_partition(P * N, N, generator=seeded(seed)) for _ in range(2))
    assert torch.equal(first, second)


def test_one_generator_gives_a_new_partition_each_time():
    generator = seeded(0)
    first, second = (random_partition(64, 8, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)


def test_without_a_generator_the_global_seed_decides():
    torch.manual_seed(7)
    first = random_partition(64, 8)
    second = random_partition(64, 8)
    torch.manual_seed(7)
    assert torch.equal(first, random_partition(64, 8))
    assert not torch.equal(first, second)


def test_every_prototype_is_equally_likely_in_the_first_block():
    generator = seeded(0)
    draws = 4000
    counts = torch.zeros(8)
    for _ in range(draws):
        counts[random_partition(8, 2, generator=generator)[0]] += 1
    # Binomial(4000, 1/4) has a deviation of 27.4; five of them
    assert float((counts - draws / 4).abs().max()) < 5 * 27.4


@pytest.mark.parametrize("make", [random_partition, fixed_partition])
@pytest.mark.parametrize(("size", "below", "above"), [(5, 4, 6), (7, 6, 8), (9, 8, 12), (13, 12, 24), (23, 12, 24)])
def test_a_block_size_that_does_not_divide_names_the_nearest_divisors(make, size, below, above):
    with pytest.raises(ConfigError, match=rf"received {size}\b.* {below} and {above}\b"):
        make(24, size)


@quick
@given(num_prototypes=st.integers(2, 300), block_size=st.integers(1, 300))
def test_a_block_size_is_accepted_exactly_if_it_divides(num_prototypes, block_size):
    if num_prototypes % block_size == 0:
        assert random_partition(num_prototypes, block_size).shape == (num_prototypes // block_size, block_size)
    else:
        with pytest.raises(ConfigError, match=f"received {block_size}"):
            random_partition(num_prototypes, block_size)


@pytest.mark.parametrize("make", [random_partition, fixed_partition])
def test_a_block_larger_than_all_prototypes_is_an_error_that_names_both_numbers(make):
    with pytest.raises(ConfigError, match=r"at most num_prototypes \(24\), received 25"):
        make(24, 25)


@pytest.mark.parametrize("make", [random_partition, fixed_partition])
@pytest.mark.parametrize(("num_prototypes", "block_size"), [(24, 0), (24, -4), (0, 1)])
def test_sizes_below_one_are_errors(make, num_prototypes, block_size):
    with pytest.raises(ConfigError, match=f"received {num_prototypes} and {block_size}"):
        make(num_prototypes, block_size)


def test_a_block_of_all_prototypes_is_one_row():
    assert random_partition(24, 24).shape == (1, 24)


def test_blocks_of_one_are_one_column():
    partition = random_partition(24, 1)
    assert partition.shape == (24, 1)
    assert sorted(partition.flatten().tolist()) == list(range(24))


def test_the_fixed_partition_is_sequential():
    assert fixed_partition(6, 2).tolist() == [[0, 1], [2, 3], [4, 5]]


# The partition of a step


def stepper(**settings_):
    """A Stepper without model: its partition may depend on the configuration and the step only."""
    made = Stepper.__new__(Stepper)
    made.config = Config(**{"num_prototypes": 64, "block_size": 8, **settings_})
    made.device = torch.device("cpu")
    return made


@quick
@given(seed=st.integers(0, 2**62), step=st.integers(0, 10**7), noise=st.integers(0, 2**31))
def test_the_partition_of_a_step_is_a_function_of_seed_and_step_only(seed, step, noise):
    first = stepper(seed=seed).partition(step)
    torch.manual_seed(noise)  # neither the global generator ...
    other = stepper(seed=seed, batch_size=32, epochs=3, lr=0.1)
    other.partition(step + 1)  # ... nor what was drawn before matters
    assert torch.equal(other.partition(step), first)
    assert sorted(first.flatten().tolist()) == list(range(64))


def test_different_steps_and_different_seeds_have_different_partitions():
    drawn = [stepper(seed=seed).partition(step) for seed in range(10) for step in range(50)]
    assert len({tuple(p.flatten().tolist()) for p in drawn}) == len(drawn)


def test_a_fixed_partition_is_the_same_at_every_step():
    fixed = stepper(partition="fixed")
    assert torch.equal(fixed.partition(0), torch.arange(64).view(8, 8))
    assert torch.equal(fixed.partition(999), fixed.partition(0))
