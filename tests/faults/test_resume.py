"""Never lose a step: a run that is killed anywhere and started again ends as if nothing had happened."""

import gc
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import carp as carp_package
from carp.errors import Interrupted
from carp.training.step import Stepper
from tests.faults.conftest import ENVIRONMENT, Server, wait_until
from tests.faults.kill_at_call import why_not
from tests.helpers import assert_same_run, steps_of, tiny_images, write_images, write_recipe

REASON = why_not()


def newest(run: Path) -> int:
    return max(steps_of(run), default=0)


def writing(run: Path) -> bool:
    return any((run / "checkpoints").glob(".unfinished-*"))


def kill_at_random_moments(carp: Server, words: list[object], out: Path, *, kills: int, stride: int, seed: int) -> int:
    """Kill `kills` times, each after progress; every third while a checkpoint is being written.

    Returns how often a half-written checkpoint was left behind.
    """
    chance, half_written = random.Random(seed), 0
    for number in range(kills):
        before = newest(out)
        child = carp.start(*words)
        goal = before + chance.randint(5, stride)
        wait_until(lambda g=goal, c=child: newest(out) >= g or not c.alive, "progress")
        if number % 3 == 2:
            wait_until(lambda: writing(out), "a checkpoint being written")
        else:
            time.sleep(chance.uniform(0, 0.3))
        child.send(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, child.output
        half_written += writing(out)
        assert newest(out) > before
    return half_written


@pytest.mark.slow
def test_six_kills_change_nothing(carp: Server, images: Path, recipe: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out]
    half_written = kill_at_random_moments(carp, words, out, kills=6, stride=12, seed=1)
    assert half_written >= 1, "no kill hit a checkpoint while it was written"
    code, output = carp.run(*words)
    assert code == 0, output
    assert "resuming at step" in output
    assert_same_run(out, undisturbed)


@pytest.mark.slow
def test_a_kill_of_the_plain_command_changes_nothing(
    images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "carp", "train", images, "--recipe", recipe, "--out", out, "epochs=5"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: newest(out) >= 10, "step 10", seconds=180)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    finished = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert_same_run(out, short_run)


def test_a_kill_at_any_call_of_a_checkpoint_write_changes_nothing(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=5", "keep_checkpoints=2"]
    child = carp.start(*words, die_at=9)  # the folder is ready after the 8th call
    child.wait()
    assert (out / "config.yaml").exists()
    deaths = 0
    for call in range(2, 40):  # the first call makes the folder; a write makes 11 to 12 calls
        code, output = carp.run(*words, die_at=call)
        if code == 0:
            break
        assert code == -signal.SIGKILL, output
        deaths += 1
    assert code == 0
    assert deaths >= 12
    assert_same_run(out, short_run)


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.slow
def test_twenty_kills_while_a_checkpoint_is_written_in_the_background_change_nothing(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    """At its first, second, … twentieth system call that changes a file, whichever library makes it."""
    out, log = tmp_path / "run", tmp_path / "calls.txt"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=5"]
    options = {"under": str(out / "checkpoints"), "calls": str(log)}
    died = set[str]()
    for call in range(1, 21):
        child = carp.start(*words, kill_at=call, **options)
        assert child.wait() == -signal.SIGKILL, child.output
        died.add(log.read_text().splitlines()[-1].split()[0])
    assert {"write", "fsync", "rename"} <= died, died
    code, output = carp.run(*words)
    assert code == 0, output
    assert_same_run(out, short_run)


def test_kills_of_a_run_with_a_start_change_nothing(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    """Held-out images, the checkpoint of epoch 0 and the best one included; the start is gone after the first kill."""
    start = Path(shutil.copytree(short_run, tmp_path / "start"))
    words = ["train", images, "--recipe", recipe, "--from", start, "epochs=3", "keep_checkpoints=2", "held_out=16"]
    code, output = carp.run(*words, "--out", tmp_path / "undisturbed")
    assert code == 0, output
    out, deaths = tmp_path / "run", 0
    code, _ = carp.run(*words, "--out", out, die_at=30)  # after the checkpoint of epoch 0
    assert code == -signal.SIGKILL
    assert steps_of(out) == [0]
    shutil.rmtree(start)
    for call in range(3, 80, 5):
        code, output = carp.run(*words, "--out", out, die_at=call)
        if code == 0:
            break
        assert code == -signal.SIGKILL, output
        deaths += 1
    assert code == 0
    assert deaths >= 4
    assert_same_run(out, tmp_path / "undisturbed")
    names = [sorted(p.name for p in (run / "checkpoints").glob("step-*")) for run in (out, tmp_path / "undisturbed")]
    assert names[0] == names[1]
    assert sum(name.endswith("-best") for name in names[0]) == 1


@pytest.mark.parametrize("call", range(1, 9))
def test_a_kill_while_the_run_folder_is_made_changes_nothing(
    carp: Server, images: Path, recipe: Path, tmp_path: Path, call: int
) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=1"]
    code, output = carp.run(*words, die_at=call)
    assert code == -signal.SIGKILL, output
    code, output = carp.run(*words)
    assert code == 0, output
    assert steps_of(out)[-1] == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_says_so_and_the_same_command_continues(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "run"
    # Checkpoints come from the signal alone.
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=5", "checkpoint_steps=10000"]
    child = carp.start(*words)
    wait_until(lambda: "step 1/20" in child.output, "the first step")
    child.send(number)
    assert child.wait() == code, child.output
    last = child.output.strip().splitlines()[-1]
    assert f"stopped by {number.name} after step " in last
    assert "everything is saved" in last
    assert "same command" in last
    assert child.output.count("everything is saved") == 1
    assert "Traceback" not in child.output
    (saved,) = steps_of(out)
    assert 1 <= saved < 20
    assert f"after step {saved} of 20" in last

    again, output = carp.run(*words)
    assert again == 0, output
    assert f"resuming at step {saved} of 20" in output
    assert_same_run(out, short_run)


def test_a_second_signal_ends_the_process_at_once_and_nothing_is_lost(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out, "epochs=5"]
    child = carp.start(*words)
    wait_until(lambda: newest(out) >= 5, "a checkpoint")
    child.send(signal.SIGTERM)
    child.send(signal.SIGTERM)
    assert child.wait() in {143, -signal.SIGTERM}, child.output
    code, output = carp.run(*words)
    assert code == 0, output
    assert_same_run(out, short_run)


# In one process, and so fast: stop at a step, continue, compare.


def train_stopping_at(
    step: int | None, error: BaseException | signal.Signals | None, folder: Path, monkeypatch, **settings
) -> None:
    real = Stepper.__call__

    def call(self, batch, **kwargs):
        if batch.step == step:
            if not isinstance(error, signal.Signals):
                raise error
            signal.raise_signal(error)
        return real(self, batch, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "__call__", call)
        carp_package.train(tiny_images(), folder / "run", write_recipe(folder / "tiny.yaml"), quiet=True, **settings)


VARIANTS = {
    "teacher": {},
    "siamese": {"teacher_momentum": 0},
    "adamw": {"optimiser": "adamw", "lr": 1e-3},
    "sgd, clipped": {"optimiser": "sgd", "clip_gradient": 0.1, "lr": [0.1, 0.01]},
    "bf16, micro-batches": {"precision": "bf16", "micro_batch": 8},
    "fp16, micro-batches": {"precision": "fp16", "micro_batch": 8},
    "authors, micro-batches": {"reading": "authors", "micro_batch": 8, "local_views": 1, "local_size": 16},
    "authors, a copy": {"reading": "authors", "teacher_momentum": 0},
    "local views": {"local_views": 2, "local_size": 16},
    "schedules, warm-up, fixed partition": {
        "entropy_weight": [2, 0.5],
        "weight_decay": [1e-6, 1e-3],
        "warmup_epochs": 2,
        "partition": "fixed",
    },
    "plain layout, dropout": {
        "channels_last": False,
        "encoder_options": {
            "layers": [1, 1, 1, 1],
            "channels": [8, 8, 16, 16],
            "stem_type": "deep",
            "stem_width": 4,
            "drop_path_rate": 0.5,
        },
    },
}


SLOW_VARIANTS = {"sgd, clipped", "fp16, micro-batches", "authors, a copy"}  # little that the others do not show


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] if name in SLOW_VARIANTS else [])
        for name, settings in VARIANTS.items()
    ],
)
def test_every_variant_continues_as_if_unbroken(tmp_path: Path, monkeypatch, settings) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir(), broken.mkdir()
    settings = {"epochs": 3, "checkpoint_steps": 3, **settings}
    train_stopping_at(None, None, unbroken, monkeypatch, **settings)
    with pytest.raises(ZeroDivisionError):  # after step 7 the newest checkpoint is 6
        train_stopping_at(7, ZeroDivisionError(), broken, monkeypatch, **settings)
    assert steps_of(broken / "run")[-1] == 6
    gc.collect()
    train_stopping_at(None, None, broken, monkeypatch, **settings)
    assert_same_run(broken / "run", unbroken / "run")


def test_the_loss_scale_continues_where_it_was(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("carp.training.loss_scale._FIRST", 2.0**60)  # every step overflows
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir(), broken.mkdir()
    settings = {"epochs": 3, "checkpoint_steps": 3, "precision": "fp16"}
    train_stopping_at(None, None, unbroken, monkeypatch, **settings)
    with pytest.raises(ZeroDivisionError):
        train_stopping_at(7, ZeroDivisionError(), broken, monkeypatch, **settings)
    monkeypatch.setattr("carp.training.loss_scale._FIRST", 2.0**16)
    train_stopping_at(None, None, broken, monkeypatch, **settings)
    assert_same_run(broken / "run", unbroken / "run")
    lines = [json.loads(line) for line in (broken / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss_scale"] for line in lines if line.get("skipped")] == [2.0 ** (59 - n) for n in range(12)]


@pytest.mark.parametrize("step", [0, 3, 4, 11])  # the first, the last of an epoch, the first of one, the last but one
def test_a_stop_at_any_place_of_an_epoch_with_validation_changes_nothing(
    tmp_path: Path, monkeypatch, step: int
) -> None:
    validation = write_images(tmp_path / "validation", tiny_images(24, seed=5), classes=3)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir(), broken.mkdir()
    settings = {"epochs": 3, "validation": str(validation)}
    train_stopping_at(None, None, unbroken, monkeypatch, **settings)
    if step < 11:
        with pytest.raises(Interrupted) as stopped:
            train_stopping_at(step, signal.SIGTERM, broken, monkeypatch, **settings)
        assert stopped.value.exit_code == 143
        assert steps_of(broken / "run")[-1] == step + 1
    else:  # a signal in the last step: the run is finished, there is nothing left to stop
        train_stopping_at(step, signal.SIGTERM, broken, monkeypatch, **settings)
    train_stopping_at(None, None, broken, monkeypatch, **settings)
    assert_same_run(broken / "run", unbroken / "run")
    assert b"knn_teacher" in (broken / "run" / "metrics.jsonl").read_bytes()


def test_what_a_failed_run_had_not_yet_written_does_not_appear_in_the_run_that_continues_it(
    tmp_path: Path, monkeypatch
) -> None:
    """In a notebook the failed call may live on in a traceback, and its open file with it."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    unbroken.mkdir(), broken.mkdir()
    train_stopping_at(None, None, unbroken, monkeypatch, epochs=3)
    with pytest.raises(ZeroDivisionError) as caught:
        train_stopping_at(8, ZeroDivisionError(), broken, monkeypatch, epochs=3)
    train_stopping_at(None, None, broken, monkeypatch, epochs=3)
    del caught
    gc.collect()
    assert_same_run(broken / "run", unbroken / "run")


def test_the_signal_handlers_of_the_caller_are_put_back(tmp_path: Path, monkeypatch) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        train_stopping_at(2, signal.SIGINT, tmp_path, monkeypatch)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_run_depends_on_its_seed(tmp_path: Path, monkeypatch) -> None:
    """Otherwise the comparisons above would prove nothing."""
    for seed in (3, 4):
        (tmp_path / str(seed)).mkdir()
        train_stopping_at(None, None, tmp_path / str(seed), monkeypatch, epochs=1, seed=seed)
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "3" / "run", tmp_path / "4" / "run")


# Minutes long.


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [["teacher_momentum=0"], ["optimiser=adamw", "lr=0.001"], ["local_views=2", "local_size=16", "precision=bf16"]],
    ids=["siamese", "adamw", "bf16 with local views"],
)
def test_ten_kills_change_nothing_in_other_variants(
    carp: Server, images: Path, recipe: Path, tmp_path: Path, settings: list[str]
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    words: list[object] = ["train", images, "--recipe", recipe, *settings, "--out"]
    code, output = carp.run(*words, unbroken)
    assert code == 0, output
    kill_at_random_moments(carp, [*words, broken], broken, kills=10, stride=8, seed=2)
    code, output = carp.run(*words, broken)
    assert code == 0, output
    assert_same_run(broken, unbroken)


@pytest.mark.slow
def test_kills_and_another_number_of_workers_change_nothing_for_photographs(
    carp: Server, recipe: Path, tmp_path: Path
) -> None:
    photos = write_images(tmp_path / "photos", np.repeat(np.repeat(tiny_images(64, 20), 4, axis=1), 5, axis=2))
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    words: list[object] = ["train", photos, "--recipe", recipe, "global_size=72", "epochs=10", "blur=[1, 0.1, 0.5]"]
    code, output = carp.run(*words, "workers=2", "--out", unbroken)
    assert code == 0, output
    continued: list[object] = [*words, "workers=2", "--out", broken]
    kill_at_random_moments(carp, continued, broken, kills=2, stride=8, seed=4)
    child = carp.start(*continued)
    wait_until(lambda: newest(broken) >= 30, "step 30")
    child.send(signal.SIGTERM)
    assert child.wait() == 143, child.output
    code, output = carp.run(*words, "workers=0", "--out", broken)
    assert code == 0, output
    assert_same_run(broken, unbroken)
