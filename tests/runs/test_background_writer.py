"""States written in the background: steps go on, nothing is lost, and errors are raised where they are seen."""

import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch

from carp.errors import CheckpointError, CollapseError, DataError, Interrupted
from carp.runs.background_writer import BackgroundWriter, Write
from carp.runs.checkpoint import Checkpoint, load_newest, save, snapshot
from carp.runs.resumable import ResumableLoop
from tests.runs.test_resumable import stop_at


class Slow:
    """Counts steps; a save copies the count, and writes it when `may_write` is set."""

    def __init__(self, folder: Path, *, error: str | None = None) -> None:
        self.folder, self.error = folder, error
        self.may_write, self.events = threading.Event(), list[str]()
        self.value = torch.zeros(1)

    def save(self, done: int) -> Write:
        copied = snapshot({"value": self.value})
        self.events.append(f"copy {done}")

        def write() -> None:
            assert self.may_write.wait(30)
            if self.error:
                raise CheckpointError(self.error)
            save(self.folder, Checkpoint(done, copied, {}), keep=2)
            self.events.append(f"wrote {done}")

        return write

    def run(
        self, during: Callable[[int], None], *, batches: Callable[[int, int], Generator[int]] | None = None
    ) -> None:
        def step(number: int, _batch: int) -> None:
            self.value += 1  # in place, as an optimiser does
            self.events.append(f"step {number}")
            during(number)

        ResumableLoop(
            first_step=0,
            last_step=6,
            batches=batches or (lambda first, last: (i for i in range(first, last))),
            step=step,
            save=self.save,
            save_seconds=1e9,
            save_steps=2,
        ).run()


def test_steps_go_on_while_a_state_is_written_and_the_next_save_waits(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    slow.run(lambda number: slow.may_write.set() if number == 3 else None)
    events = slow.events
    assert events.index("step 3") < events.index("wrote 2") < events.index("copy 4")
    assert events[-1] == "wrote 6"
    found, _ = load_newest(tmp_path)
    assert found is not None
    assert found.tensors["value"].item() == 6


def test_what_is_written_is_the_state_at_the_time_of_the_save(tmp_path: Path) -> None:
    slow = Slow(tmp_path)

    def during(number: int) -> None:
        if number == 3:
            slow.may_write.set()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        slow.run(during)
    found, _ = load_newest(tmp_path)  # the error waited for the write
    assert found is not None
    assert (found.step, found.tensors["value"].item()) == (2, 2)


def test_an_error_of_a_write_ends_the_loop_after_the_next_step(tmp_path: Path) -> None:
    slow = Slow(tmp_path, error="the disk is full.")
    slow.may_write.set()
    with pytest.raises(CheckpointError, match="the disk is full"):
        slow.run(lambda _: None)
    assert not [event for event in slow.events if event.startswith("copy") and event != "copy 2"]


def test_an_error_of_the_last_write_is_raised(tmp_path: Path) -> None:
    slow = Slow(tmp_path)
    slow.may_write.set()

    def during(number: int) -> None:
        slow.error = "the disk is full." if number == 5 else None

    with pytest.raises(CheckpointError, match="the disk is full"):
        slow.run(during)


def no_more_after(count: int) -> Callable[[int, int], Generator[int]]:
    def batches(first: int, _last: int) -> Generator[int]:
        yield from range(first, count)
        raise DataError("the images are gone.")

    return batches


def collapse_at(step: int) -> Callable[[int], None]:
    def during(number: int) -> None:
        if number == step:
            raise CollapseError("collapsed.")

    return during


@pytest.mark.parametrize("way", ["signal", "no more images", "collapse"])
def test_whatever_ends_the_loop_waits_until_its_steps_are_written(tmp_path: Path, way: str) -> None:
    slow = Slow(tmp_path)
    threading.Timer(0.1, slow.may_write.set).start()
    nothing: Callable[[int], None] = lambda _: None  # noqa: E731
    during = {"signal": stop_at(2), "collapse": collapse_at(2)}.get(way, nothing)
    with pytest.raises((Interrupted, DataError, CollapseError)):
        slow.run(during, batches=no_more_after(3) if way == "no more images" else None)
    assert slow.events[-1] == "wrote 3"
    found, _ = load_newest(tmp_path)
    assert found is not None
    assert found.tensors["value"].item() == 3


def test_a_disk_that_is_full_when_a_signal_arrives_is_the_error(tmp_path: Path) -> None:
    slow = Slow(tmp_path, error="the disk is full.")
    slow.may_write.set()
    with pytest.raises(CheckpointError, match="the disk is full"):
        slow.run(stop_at(1))


def test_a_second_ctrl_c_does_not_wait() -> None:
    never = threading.Event()
    with pytest.raises(KeyboardInterrupt), BackgroundWriter() as writer:
        writer.start(lambda: never.wait(30))
        raise KeyboardInterrupt
    assert not never.is_set()
    assert any(thread.name == "checkpoint" for thread in threading.enumerate())
    never.set()


def test_a_snapshot_shares_no_memory(tmp_path: Path) -> None:
    weight = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last).requires_grad_()
    copied = snapshot({"weight": weight})["weight"]
    assert copied.is_contiguous()
    assert not copied.requires_grad
    with torch.no_grad():
        expected = weight.clone()
        weight.zero_()
    assert torch.equal(copied, expected)
