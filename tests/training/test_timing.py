"""A few steps tell how long the run takes; a batch that is too slow is timed in part."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from carp.compute.threads import OtherLoad
from carp.config import Config, resolve
from carp.images.sources.array import ArraySource
from carp.training.planning import best_choice, timing
from carp.training.planning.timing import Timing, time_steps
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


def tiny(**changes: object) -> Config:
    return resolve({**TINY, "batch_size": 64, **changes}, num_images=64)


@pytest.fixture
def images() -> ArraySource:
    return ArraySource(tiny_images())


class Clock:
    """A step takes `fixed` seconds and `each` for every image; the first one of a stepper takes 100."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fixed: float, each: float, others: float = 0.0) -> None:
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
        monkeypatch.setattr(timing.OtherLoad, "cores", lambda _: others)


def summary(found: Timing) -> tuple[object, int, int]:
    """The mean step, how many were timed, and their images."""
    return pytest.approx(found.slowest), found.steps, found.images


def test_quick_steps_are_timed_with_the_whole_batch(monkeypatch: pytest.MonkeyPatch, images: ArraySource) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 1000.0)
    clock = Clock(monkeypatch, fixed=0.5, each=0.01)
    assert summary(time_steps(tiny(workers=0), images, CPU)) == (0.5 + 0.64, 3, 64)
    assert clock.taken == [(8, None)] * 2 + [(64, None)] * 4


def test_slow_steps_are_timed_with_a_part_of_the_batch_and_scaled(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 160.0)
    clock = Clock(monkeypatch, fixed=0, each=2.0)
    assert summary(time_steps(tiny(workers=0), images, CPU)) == (128, 1, 32)
    assert clock.taken == [(8, None)] * 2 + [(32, None)] * 2  # 100 + 64 seconds: enough


def test_very_slow_steps_are_timed_once(monkeypatch: pytest.MonkeyPatch, images: ArraySource) -> None:
    clock = Clock(monkeypatch, fixed=0, each=2.0)
    assert summary(time_steps(tiny(workers=0), images, CPU)) == (128, 1, 8)
    assert len(clock.taken) == 2


def test_few_images_are_not_scaled_up_when_more_can_be_afforded(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 24.0)
    clock = Clock(monkeypatch, fixed=4.0, each=0.125)  # eight images take most of what 32 take
    assert summary(time_steps(tiny(workers=0), images, CPU)) == (16.0, 1, 32)
    assert clock.taken[-1] == (32, None)


def test_on_a_busy_machine_the_time_is_a_range_that_begins_with_an_idle_one(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    monkeypatch.setattr(timing, "_SECONDS", 1000.0)
    monkeypatch.setattr(timing, "available_cores", lambda: 4)
    Clock(monkeypatch, fixed=0.5, each=0.01, others=2.0)
    found = time_steps(tiny(workers=0), images, CPU)
    assert found.others == 2.0
    assert (found.fastest, found.slowest) == (pytest.approx(0.57), pytest.approx(1.14))


def test_the_number_of_threads_is_the_faster_one_and_restored(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(timing, "_SECONDS", 1000.0)
    monkeypatch.setattr(timing, "is_tunable", lambda _: True)
    monkeypatch.setattr(timing, "ladder", lambda _: [4, 2, 1])
    clock = Clock(monkeypatch, fixed=0.5, each=0.01)
    slow = timing._time
    seen = []

    def measure(*arguments: object, **options: object) -> Timing:
        seen.append((torch.get_num_threads(), arguments[4]))
        found = slow(*arguments, **options)
        return found.scaled(3.0) if arguments[4] == 4 else found

    monkeypatch.setattr(timing, "_time", measure)
    assert time_steps(tiny(workers=0), images, CPU).threads == 2
    assert {count for _, count in seen} == {4, 2}
    assert time_steps(tiny(workers=0, threads=3), images, CPU).threads == 3
    assert torch.get_num_threads() == before
    assert clock.taken


def test_the_load_of_other_programs_is_measured() -> None:
    load, burn = OtherLoad(), "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    shell = f"exec setsid {sys.executable} -c '{burn}'"  # a child of a child: not ours
    if not Path("/proc/stat").exists():
        pytest.skip("needs /proc/stat")
    subprocess.run(["sh", "-c", f"{shell} &"], check=True)
    time.sleep(2)
    assert load.cores() > 0.2


def test_a_run_that_takes_too_long_gets_smaller_views_then_fewer_epochs(
    monkeypatch: pytest.MonkeyPatch, images: ArraySource
) -> None:
    def measured(config: Config, *_: object, **__: object) -> Timing:
        return Timing(config.global_size**2 / 1000, config.global_size**2 / 500, 3, 64, 1, 0.0)

    monkeypatch.setattr(best_choice, "time_steps", measured)
    config = tiny(workers=0, global_size=224, epochs=400)
    now = measured(config)
    assert best_choice.best_choice(config, images, CPU, now, int(3000 / now.fastest)).settings == ()
    found = best_choice.best_choice(config, images, CPU, now, 400)  # 50 s per epoch: 71 epochs fit, at full size
    assert found.settings == ("epochs=71",)
    assert found.fastest <= best_choice.LIMIT < found.slowest
    monkeypatch.setattr(
        best_choice, "time_steps", lambda config, *a, **k: measured(config).scaled(20)
    )  # 1,003 s per epoch at 224
    slow = now.scaled(20)
    found = best_choice.best_choice(config, images, CPU, slow, 400)
    assert found.settings == ("global_size=80", "epochs=28")
    with_locals = tiny(workers=0, global_size=224, epochs=400, local_views=2, local_size=96, warmup_epochs=50)
    settings = best_choice.best_choice(with_locals, images, CPU, slow, 400).settings
    assert settings == ("global_size=80", "local_size=32", "epochs=28", "warmup_epochs=2")


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
    assert 0 < found.fastest <= found.slowest < 60
