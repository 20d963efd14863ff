"""The number of threads: on simulated machines, as users set it, and in real runs that repeat what was recorded."""

import itertools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from carp.compute.threads import ThreadTuner, TunedThreads, available_cores, chosen_by_user, is_tunable
from carp.runs.thread_log import RunThreads

CPU = torch.device("cpu")
IDLE, BUSY = {1: 0.045, 2: 0.031}, {1: 0.05, 2: 0.6}  # seconds per unit, as measured on two cores
ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
} | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "400"}


class Machine:
    """Takes `seconds[threads]` per unit, whatever the time of day says."""

    def __init__(self, seconds):
        self.seconds, self.now = seconds, 0.0
        self.tuner = ThreadTuner(max(seconds), clock=lambda: self.now)

    def run(self, units):
        start, used = self.now, []
        for _ in range(units):
            used.append(self.tuner.threads)
            taken = self.seconds[self.tuner.threads]
            self.now += taken
            self.tuner.add(taken)
        return self.now - start, used


@pytest.mark.parametrize(("seconds", "best", "overhead"), [(IDLE, 2, 1.01), (BUSY, 1, 1.15)])
def test_nearly_the_best_time_whether_the_machine_is_idle_or_busy(seconds, best, overhead):
    machine = Machine(seconds)
    taken, used = machine.run(1000)
    assert machine.tuner.settled == best
    assert taken <= overhead * 1000 * seconds[best]
    assert used[:3] == [2, 2, 2]  # it begins as torch would


def test_it_follows_a_machine_that_becomes_busy_and_idle_again():
    machine = Machine(IDLE)
    machine.run(100)
    machine.seconds = BUSY
    taken, used = machine.run(300)
    assert machine.tuner.settled == 1
    assert used.index(1) <= 4  # a few slow units are enough
    assert taken <= 1.4 * 300 * BUSY[1]
    machine.seconds = IDLE
    machine.run(6000)
    assert machine.tuner.settled == 2


def test_single_slow_units_change_nothing():
    machine = Machine(IDLE)
    machine.run(20)
    for unit in range(200):
        machine.seconds = {n: 10 * t for n, t in IDLE.items()} if unit % 5 == 0 else IDLE
        _, used = machine.run(1)
        assert used == [2]


def test_when_everything_becomes_slower_fewer_threads_are_tried_once_and_left():
    machine = Machine(IDLE)
    machine.run(20)
    machine.seconds = {n: 3 * t for n, t in IDLE.items()}
    _, used = machine.run(500)
    assert machine.tuner.settled == 2
    assert used.count(1) <= 3


@given(
    st.integers(2, 64),
    st.lists(st.floats(0.001, 10.0), min_size=7, max_size=7),
)
def test_it_settles_on_a_number_that_neither_half_nor_double_beats(most, times):
    ladder = list(itertools.takewhile(lambda n: n >= 1, (most // 2**i for i in range(7))))
    machine = Machine(dict(zip(ladder, times, strict=False)))
    machine.run(5000)
    settled = machine.tuner.settled
    place = ladder.index(settled)
    for other in ladder[max(0, place - 1) : place + 2]:
        assert machine.seconds[other] >= 0.9 * machine.seconds[settled] or other < settled


def test_a_number_that_the_user_chose_is_kept(monkeypatch):
    cores = available_cores()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert chosen_by_user() == torch.get_num_threads()
    assert not is_tunable(CPU)
    monkeypatch.delenv("OMP_NUM_THREADS")
    before = torch.get_num_threads()
    torch.set_num_threads(cores + 1)
    try:
        assert chosen_by_user() == cores + 1
        with TunedThreads(CPU) as threads, threads.unit():
            assert torch.get_num_threads() == cores + 1
        torch.set_num_threads(cores)
        assert chosen_by_user() is None
        assert is_tunable(CPU) == (cores > 1)
        assert not is_tunable(torch.device("meta"))
    finally:
        torch.set_num_threads(before)


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_threads_spin_briefly_unless_the_user_says_how_they_wait():
    show = "import os, carp; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert int(python(show)) < 300_000
    assert python(show, OMP_WAIT_POLICY="passive") == "None"
    assert python(show, GOMP_SPINCOUNT="77") == "77"
    assert python(f"import torch; {show}") == "None"  # too late: it has been read


STEADY = "import carp.compute.threads as t; t._SLOWER = t._FIRST_WAIT = 1e9; from carp.cli import main; main()"
SIZES = (
    "global_size=16",
    "num_prototypes=256",
    "block_size=64",
    "projector_hidden=64",
    "embedding=32",
    "batch_size=64",
)
SMALL = "encoder_options={channels: [8, 8, 8, 8]}"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i, image in enumerate(np.random.default_rng(0).integers(0, 256, (256, 16, 16, 3), np.uint8)):
        Image.fromarray(image).save(folder / f"{i}.png")
    return folder


def train(images, out, *settings, **environment):
    """Train a small network for twelve steps; after the first ones, the number of threads stays what it is."""
    command = (sys.executable, "-c", STEADY, "train", images, "--recipe", "small-images", "--out", out, *SIZES, SMALL)
    often = ("epochs=3", "checkpoint_steps=2", "keep_checkpoints=1000")
    done = subprocess.run(
        [*command, *often, *settings], env=ENVIRONMENT | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def rewind(run):
    """Leave the first checkpoint only, as if the run had been killed a little later."""
    for point in sorted((run / "checkpoints").iterdir())[1:]:
        shutil.rmtree(point)


def weights(run):
    return (max((run / "checkpoints").iterdir()) / "tensors.safetensors").read_bytes()


def record(run):
    return [json.loads(line) for line in (run / "threads.jsonl").read_text().splitlines()]


def numbers(run):
    return [(line["step"], line["threads"]) for line in record(run)]


needs_cores = pytest.mark.skipif(available_cores() < 2, reason="needs two cores")


@pytest.mark.slow
@needs_cores
def test_a_continued_run_repeats_the_recorded_numbers_and_ends_in_the_same_bits(images, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(images, whole)
    before = record(whole)
    assert numbers(whole)[:2] == [(0, available_cores()), (3, available_cores() // 2)]  # fewer threads are tried
    shutil.copytree(whole, killed)
    rewind(killed)
    with (killed / "threads.jsonl").open("a") as file:
        file.write('{"step": 11, "thr')  # cut by the kill
    train(images, killed)
    assert record(killed) == before
    assert weights(killed) == weights(whole)


@pytest.mark.slow
@needs_cores
def test_the_environment_and_the_setting_fix_the_number_and_a_change_is_reported(images, tmp_path):
    run = tmp_path / "run"
    train(images, run, OMP_NUM_THREADS="1")
    assert numbers(run) == [(0, 1)]
    rewind(run)
    said = train(images, run, "threads=2")
    assert "saved with 1 thread and resumes with 2 threads" in said
    assert "rounding" in said
    assert numbers(run) == [(0, 1), (2, 2)]


class FakeTime:
    """A clock that steps of a simulated machine move."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr("carp.runs.thread_log.time.monotonic", lambda: self.now)

    def run(self, threads, steps):
        used = []
        with threads:
            for step in steps:
                with threads.step(step):
                    assert torch.get_num_threads() == threads.current
                    used.append(threads.current)
                    self.now += self.seconds[threads.current]
        return used


def run_threads(folder, step=0, *, threads=None, most=2, recorded=None, said=None):
    said = [] if said is None else said
    return RunThreads(
        folder,
        step=step,
        threads=threads,
        most=most,
        recorded=recorded,
        writes=True,
        announce=said.append,
        warn=said.append,
    )


def test_a_run_on_an_idle_machine_changes_nothing_after_it_is_continued(tmp_path, monkeypatch):
    machine = FakeTime(monkeypatch, IDLE)
    used = machine.run(run_threads(tmp_path), range(50))
    assert used == [2, 2, 2, 1, 1, *[2] * 45]
    again = machine.run(run_threads(tmp_path, 30, recorded=2), range(30, 50))
    assert again == used[30:]
    from_the_middle = machine.run(run_threads(tmp_path, 4, recorded=1), range(4, 50))
    assert from_the_middle == used[4:]


def test_a_continued_run_finds_out_that_the_machine_is_busy_now(tmp_path, monkeypatch):
    machine, said = FakeTime(monkeypatch, IDLE), []
    machine.run(run_threads(tmp_path), range(50))
    machine.seconds = BUSY
    used = machine.run(run_threads(tmp_path, 50, recorded=2, said=said), range(50, 80))
    assert used == [2, 2, 2, *[1] * 27]
    assert len(said) == 1
    assert "1 thread" in said[0]
    assert "busy" in said[0]
    assert torch.get_num_threads() == 1  # as the tests began


def test_the_record_of_another_machine_or_a_damaged_one(tmp_path, monkeypatch):
    machine, said = FakeTime(monkeypatch, dict.fromkeys((1, 2, 4, 8), 0.1)), []
    machine.run(run_threads(tmp_path, most=8), range(20))
    used = machine.run(run_threads(tmp_path, 2, most=2, recorded=8, said=said), range(2, 20))
    assert max(used) <= 2
    assert "saved with 8 threads and resumes with 2 threads" in said[0]
    for damage in ("", "[]\n", '{"step": "x"}\n', '{"step": 0, "threads": -1, "seconds": {}}\n', "\x00"):
        (tmp_path / "threads.jsonl").write_text(damage)
        assert run_threads(tmp_path, 5, recorded=2).current == 2
        assert [line["step"] for line in record(tmp_path)] == [5]
