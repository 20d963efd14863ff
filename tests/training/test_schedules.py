"""Schedules: values at the ends and in between, from the step alone."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carp.config import Config
from carp.training.schedules import Schedules, cosine
from tests.reference import carp_numpy

EPOCHS, STEPS_PER_EPOCH = 10, 7
LAST = EPOCHS * STEPS_PER_EPOCH - 1


def schedules(**settings):
    return Schedules(Config(**{"epochs": EPOCHS, "batch_size": 256, **settings}), STEPS_PER_EPOCH)


def test_a_cosine_starts_at_its_start_and_ends_at_its_end():
    assert cosine(0.6, 0.006, 0, 100) == 0.6
    assert cosine(0.6, 0.006, 99, 100) == pytest.approx(0.006, rel=1e-12)


def test_a_cosine_is_half_way_in_the_middle():
    assert cosine(1.0, 0.0, 50, 101) == pytest.approx(0.5, rel=1e-12)
    assert cosine(1.0, 0.0, 25, 101) == pytest.approx((1 + math.sqrt(0.5)) / 2, rel=1e-12)


@given(start=st.floats(0, 10), end=st.floats(0, 10), num_steps=st.integers(2, 10_000), share=st.floats(0, 1))
def test_a_cosine_equals_the_loops_and_stays_between_its_ends(start, end, num_steps, share):
    step = round(share * (num_steps - 1))
    found = cosine(start, end, step, num_steps)
    assert found == pytest.approx(carp_numpy.cosine(start, end, step, num_steps), rel=1e-12, abs=1e-12)
    assert min(start, end) - 1e-12 <= found <= max(start, end) + 1e-12


def test_a_falling_cosine_never_rises():
    values = [cosine(0.6, 0.006, step, 200) for step in range(200)]
    assert all(a > b for a, b in pairwise(values))


def test_a_run_of_one_step_uses_the_starting_value():
    assert cosine(0.6, 0.006, 0, 1) == 0.6


def test_the_number_of_steps_is_epochs_times_steps_per_epoch():
    assert schedules().num_steps == EPOCHS * STEPS_PER_EPOCH


def test_the_learning_rate_runs_from_start_to_end_at_a_batch_of_256():
    s = schedules(lr=(0.6, 0.006))
    assert s.lr(0) == pytest.approx(0.6)
    assert s.lr(LAST) == pytest.approx(0.006)
    assert s.lr(23) == pytest.approx(carp_numpy.cosine(0.6, 0.006, 23, LAST + 1))


@pytest.mark.parametrize(("batch", "factor"), [(64, 0.25), (256, 1.0), (4096, 16.0)])
def test_linear_scaling_multiplies_the_start_and_not_the_end(batch, factor):
    s = schedules(lr=(0.6, 0.006), batch_size=batch)
    assert s.lr(0) == pytest.approx(0.6 * factor)
    assert s.lr(LAST) == pytest.approx(0.006)


def test_a_constant_learning_rate_is_scaled_as_a_whole():
    s = schedules(lr=0.1, batch_size=1024)
    assert [s.lr(step) for step in range(LAST + 1)] == pytest.approx([0.4] * (LAST + 1), rel=1e-12)


def test_without_scaling_the_batch_does_not_matter():
    s = schedules(lr=(0.6, 0.006), batch_size=4096, lr_scaling="none")
    assert s.lr(0) == pytest.approx(0.6)
    assert s.lr(LAST) == pytest.approx(0.006)


def test_warm_up_rises_linearly_to_the_scaled_start_then_the_cosine_begins():
    s = schedules(lr=(0.6, 0.006), batch_size=512, warmup_epochs=2)
    warmup = 2 * STEPS_PER_EPOCH
    for step in range(warmup):
        assert s.lr(step) == pytest.approx(1.2 * (step + 1) / warmup)
    assert s.lr(warmup) == pytest.approx(1.2)
    assert s.lr(warmup + 20) == pytest.approx(carp_numpy.cosine(1.2, 0.006, 20, LAST + 1 - warmup))
    assert s.lr(LAST) == pytest.approx(0.006)


def test_warm_up_may_last_part_of_an_epoch():
    s = schedules(lr=0.1, warmup_epochs=0.5)
    assert [s.lr(step) for step in range(5)] == pytest.approx([0.1 * x / 4 for x in (1, 2, 3, 4, 4)])


def test_without_warm_up_the_first_step_has_the_full_learning_rate():
    assert schedules(lr=(0.3, 0.003)).lr(0) == pytest.approx(0.3)


def test_the_entropy_weight_is_constant_by_default_and_decays_by_cosine_if_asked():
    assert {schedules().entropy_weight(step) for step in range(LAST + 1)} == {1.0}
    s = schedules(entropy_weight=(2.0, 0.5))
    assert s.entropy_weight(0) == pytest.approx(2.0)
    assert s.entropy_weight(30) == pytest.approx(carp_numpy.cosine(2.0, 0.5, 30, LAST + 1))
    assert s.entropy_weight(LAST) == pytest.approx(0.5)


def test_the_teacher_momentum_rises_from_099_to_1_by_cosine():
    s = schedules()
    assert s.teacher_momentum(0) == pytest.approx(0.99, rel=1e-12)
    assert s.teacher_momentum(40) == pytest.approx(carp_numpy.cosine(0.99, 1.0, 40, LAST + 1), rel=1e-12)
    assert s.teacher_momentum(LAST) == pytest.approx(1.0, rel=1e-12)
    assert all(s.teacher_momentum(step) <= 1.0 for step in range(LAST + 1))


def test_neither_warm_up_nor_batch_touch_the_other_schedules():
    plain, other = schedules(), schedules(warmup_epochs=3, batch_size=4096)
    for step in (0, 10, LAST):
        assert other.teacher_momentum(step) == plain.teacher_momentum(step)
        assert other.entropy_weight(step) == plain.entropy_weight(step)
        assert other.weight_decay(step) == plain.weight_decay(step)


def test_weight_decay_follows_its_own_schedule():
    s = schedules(weight_decay=(0.04, 0.4))
    assert s.weight_decay(0) == pytest.approx(0.04)
    assert s.weight_decay(LAST) == pytest.approx(0.4)
