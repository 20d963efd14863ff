"""A few steps tell how long the run takes; a batch that is too slow is timed in part."""

import pytest
import torch

from carp.config import Config, resolve
from carp.data.source import ArraySource
from carp.training import timing
from carp.training.timing import Timing, in_words, time_steps
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


def tiny(**changes: object) -> Config:
    return resolve({**TINY, "batch_size": 64, **changes}, num_images=64)


@pytest.fixture
def images() -> ArraySource:
    return ArraySource(tiny_images())


class Clock:
    """A step takes `fixed` seconds and `each` for every image; the first one of a stepper takes 100."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fixed: float, each: float) -> None:
        self.now, self.taken = 0.0, []
        clock = self

        class Stepper:
            def __init__(self, _model: object, _optimiser: object, _schedules: object, config: Config, _d: object):
                self.first, self.config = True, config

            def __call__(self, batch: object) -> None:
                clock.taken.append((len(batch.indices), self.config.micro_batch))
                clock.now += 100 if self.first else fixed + each * len(batch.indices)
                self.first = False

        monkeypatch.setattr(timing, "Stepper", Stepper)
        monkeypatch.setattr(timing.time, "monotonic", lambda: self.now)


def test_quick_steps_are_timed_with_the_whole_batch(monkeypatch: pytest.MonkeyPatch, images: ArraySource) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 1000.0)
    clock = Clock(monkeypatch, fixed=0.5, each=0.01)
    assert time_steps(tiny(workers=0), images, CPU) == Timing(pytest.approx(0.5 + 0.64), 3, 64)
    assert clock.taken == [(8, None)] * 2 + [(64, None)] * 4


def test_slow_steps_are_timed_with_a_part_of_the_batch_and_scaled(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 160.0)
    clock = Clock(monkeypatch, fixed=0, each=2.0)
    assert time_steps(tiny(workers=0), images, CPU) == Timing(pytest.approx(128), 2, 20)
    assert clock.taken == [(8, None)] * 2 + [(20, None)] * 3  # 100 + 40 + 40 seconds: enough


def test_very_slow_steps_are_timed_once(monkeypatch: pytest.MonkeyPatch, images: ArraySource) -> None:
    clock = Clock(monkeypatch, fixed=0, each=2.0)
    assert time_steps(tiny(workers=0), images, CPU) == Timing(pytest.approx(128), 1, 8)
    assert len(clock.taken) == 2


def test_a_part_of_a_batch_still_has_several_micro_batches(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    clock = Clock(monkeypatch, fixed=0, each=2.0)
    time_steps(tiny(micro_batch=16), images, CPU)
    time_steps(tiny(micro_batch=2), images, CPU)
    time_steps(tiny(micro_batch=64), images, CPU)
    assert clock.taken[::2] == [(8, 4), (8, 2), (8, None)]


@pytest.mark.parametrize(
    ("size", "settings"), [(32, {}), (20, {}), (72, {"global_size": 72, "workers": 0})], ids=["held", "read", "photo"]
)
def test_real_steps_are_timed(size: int, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 600.0)  # a busy machine must not run out of time
    images = ArraySource(tiny_images(64, size))
    found = time_steps(tiny(batch_size=16, **settings), images, CPU)
    assert found.steps == 3
    assert found.images == 16
    assert 0 < found.seconds < 60


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0123, "0.012 s"),
        (0.84, "0.84 s"),
        (12.3, "12 s"),
        (89, "89 s"),
        (91, "2 min"),
        (5000, "83 min"),
        (7800, "2 h 10 min"),
        (3600 * 47.5, "47 h 30 min"),
        (3600 * 76, "3 days 4 h"),
    ],
)
def test_durations_are_said_as_a_person_would(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
