"""The loop that everything resumable shares: what is saved when, and what a signal does."""

import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from carp.errors import DataError, Interrupted
from carp.runs.checkpoint import Checkpoint, list_checkpoints, save
from carp.runs.resumable import ResumableLoop, newest_state


class Sum:
    """Adds up the numbers of its batches, and remembers in a folder how far it came."""

    def __init__(self, folder: Path, total: int = 10) -> None:
        self.folder, self.total, self.warnings = folder, total, list[str]()
        found = newest_state(folder, self.warnings.append)
        self.first = found.step if found else 0
        self.value = found.tensors["value"] if found else torch.zeros(1)
        self.saved = list[int]()

    def batches(self, first: int, last: int) -> Generator[int]:
        yield from range(first, last)

    def save(self, done: int) -> None:
        self.saved.append(done)
        save(self.folder, Checkpoint(done, {"value": self.value}, {}), keep=2)

    def run(
        self,
        during: Callable[[int], None] = lambda _: None,
        *,
        batches: Callable[[int, int], Generator[int]] | None = None,
        save_steps: int | None = None,
        save_seconds: float = 1e9,
        work_follows: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        def step(number: int, batch: int) -> None:
            assert number == batch
            during(number)
            self.value = self.value + number

        ResumableLoop(
            first_step=self.first,
            last_step=self.total,
            batches=batches or self.batches,
            step=step,
            save=self.save,
            save_seconds=save_seconds,
            save_steps=save_steps,
            work_follows=work_follows,
            progress=progress,
        ).run()


def stop_at(step: int) -> Callable[[int], None]:
    def during(number: int) -> None:
        if number == step:
            signal.raise_signal(signal.SIGTERM)

    return during


def test_the_last_step_is_saved_and_others_on_schedule(tmp_path: Path) -> None:
    by_steps, by_time, at_the_end = (Sum(tmp_path / name) for name in "abc")
    seen = list[tuple[int, int]]()
    by_steps.run(save_steps=4, progress=lambda *progress: seen.append(progress))
    by_time.run(save_seconds=0)
    at_the_end.run()
    assert (by_steps.saved, by_time.saved, at_the_end.saved) == ([4, 8, 10], list(range(1, 11)), [10])
    assert Sum(tmp_path / "a").first == 10
    assert seen == [(done, 10) for done in range(1, 11)]


def test_a_signal_ends_the_loop_after_its_step_and_the_next_loop_continues(tmp_path: Path) -> None:
    first = Sum(tmp_path)
    with pytest.raises(Interrupted, match=r"SIGTERM after step 4 of 10; everything is saved") as stopped:
        first.run(stop_at(3))
    assert stopped.value.exit_code == 128 + signal.SIGTERM
    assert first.saved == [4]
    second = Sum(tmp_path)
    assert second.first == 4
    second.run()
    assert second.value.item() == sum(range(10))


def test_a_signal_in_the_last_step_stops_only_what_has_work_to_follow(tmp_path: Path) -> None:
    whole = Sum(tmp_path / "whole")
    whole.run(stop_at(9))
    assert whole.saved == [10]
    part = Sum(tmp_path / "part")
    with pytest.raises(Interrupted, match="step 10 of 10"):
        part.run(stop_at(9), work_follows=True)
    assert part.saved == [10]


def test_a_signal_while_a_batch_is_awaited_saves_what_is_done(tmp_path: Path) -> None:
    sum_ = Sum(tmp_path)

    def slow(first: int, last: int) -> Generator[int]:
        for number in range(first, last):
            if number == 2:
                signal.raise_signal(signal.SIGINT)
                pytest.fail("the loop went on waiting")
            yield number

    with pytest.raises(Interrupted, match="SIGINT after step 2 of 10"):
        sum_.run(batches=slow)
    assert sum_.saved == [2]


@pytest.mark.parametrize("good", [0, 3])
def test_when_no_more_batches_can_be_made_the_steps_so_far_are_saved(tmp_path: Path, good: int) -> None:
    sum_ = Sum(tmp_path)

    def broken(first: int, _last: int) -> Generator[int]:
        yield from range(first, good)
        raise DataError("the disk is gone.")

    with pytest.raises(DataError, match="the disk is gone"):
        sum_.run(batches=broken)
    assert sum_.saved == [good] * (good > 0)


def test_a_damaged_state_is_skipped_with_a_warning(tmp_path: Path) -> None:
    Sum(tmp_path).run(save_steps=5)
    (list_checkpoints(tmp_path)[-1] / "tensors.safetensors").write_bytes(b"damaged")
    again = Sum(tmp_path)
    assert again.first == 5
    assert any("damaged" in warning for warning in again.warnings)


def test_without_a_folder_nothing_is_kept_and_the_message_says_so() -> None:
    assert newest_state(None, pytest.fail) is None
    loop = ResumableLoop(
        first_step=0,
        last_step=3,
        batches=lambda first, last: (number for number in range(first, last)),
        step=lambda number, _: stop_at(1)(number),
        save=None,
        save_seconds=0,
    )
    with pytest.raises(Interrupted, match="step 2 of 3; nothing was kept"):
        loop.run()
