"""Damaged checkpoints and metrics are reported, passed over and never trusted."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from carp.errors import CheckpointError
from carp.files.digests import sha256_of_file, sha256_of_json
from carp.runs import checkpoint
from tests.faults.conftest import Server
from tests.helpers import assert_same_run, steps_of


def truncate_tensors(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def empty_tensors(folder: Path) -> None:
    (folder / "tensors.safetensors").write_bytes(b"")


def flip_a_byte(folder: Path) -> None:
    path = folder / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def alter_step(folder: Path) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["content"]["step"] += 1
    path.write_text(json.dumps(manifest))


def break_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:50])


def binary_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(b"\xff\xfe\x00")


def other_json(folder: Path) -> None:
    (folder / "manifest.json").write_text("[1, 2]")


def delete_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def delete_tensors(folder: Path) -> None:
    (folder / "tensors.safetensors").unlink()


def empty_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


DAMAGES: list[Callable[[Path], None]] = [
    truncate_tensors,
    empty_tensors,
    flip_a_byte,
    alter_step,
    break_manifest,
    binary_manifest,
    other_json,
    delete_manifest,
    delete_tensors,
    empty_folder,
]


@pytest.fixture(scope="module")
def stopped_run(short_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 steps as it was after step 15: checkpoints at 10 and 15. Copy it before you change it."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    shutil.copytree(short_run, run)
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    return run


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_it_is_used(
    stopped_run: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = Path(shutil.copytree(stopped_run / "checkpoints", tmp_path / "checkpoints"))
    damage(folder / "step-00000015")
    with pytest.raises(CheckpointError, match="step-00000015"):
        checkpoint.load(folder / "step-00000015")
    found, problems = checkpoint.load_newest(folder)
    assert found is not None
    assert found.step == 10
    (problem,) = problems
    assert "step-00000015" in problem
    assert "\n" not in problem


def test_whoever_uses_a_run_hears_of_its_damaged_checkpoint(
    carp: Server, images: Path, stopped_run: Path, tmp_path: Path
) -> None:
    """Other weights than the newest must not be taken for these."""
    run = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    flip_a_byte(run / "checkpoints" / "step-00000015")
    for words in (("embed", run, "--data", images), ("export", run, "--format", "safetensors")):
        code, output = carp.run(*words, "--out", tmp_path / words[0] / "x.safetensors")
        assert code == 0, output
        (warning,) = [line for line in output.splitlines() if "step-00000015" in line]
        assert "warning: " in warning
        assert "damaged" in warning


@pytest.mark.parametrize(("key", "value"), [("global_size", 40), ("seed", 4), ("encoder_options", {})])
def test_settings_that_are_not_those_of_the_checkpoint_are_refused(
    carp: Server, images: Path, stopped_run: Path, tmp_path: Path, key: str, value: object
) -> None:
    run = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    settings = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**settings, key: value, "workers": 7}))
    code, output = carp.run("embed", run, "--data", images, "--out", tmp_path / "features")
    assert code == 2, output
    (error,) = output.splitlines()
    for word in ("config.yaml", f"{key}: {value!r}", repr(settings[key])):
        assert word in error
    (run / "config.yaml").write_text(yaml.safe_dump({**settings, "workers": 7}))  # free to change
    code, output = carp.run("embed", run, "--data", images, "--out", tmp_path / "features")
    assert code == 0, output


def test_a_run_continues_before_its_damaged_checkpoint_and_ends_the_same(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, short_run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    flip_a_byte(out / "checkpoints" / "step-00000015")
    (out / "checkpoints" / ".unfinished-step-00000020").mkdir()
    (out / "checkpoints" / ".unfinished-step-00000020" / "tensors.safetensors").write_bytes(b"half")
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 0, output
    (warning,) = [line for line in output.splitlines() if "step-00000015" in line]
    assert "damaged" in warning
    assert "resuming at step 10 of 20" in output
    assert_same_run(out, short_run)
    assert not list((out / "checkpoints").glob(".unfinished-*"))


def test_when_all_checkpoints_are_damaged_the_error_says_so_and_nothing_is_touched(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    truncate_tensors(out / "checkpoints" / "step-00000010")
    delete_manifest(out / "checkpoints" / "step-00000015")
    metrics = (out / "metrics.jsonl").read_bytes()
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 2
    (error,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    assert "checkpoints" in error
    assert str(out / "checkpoints") in error
    assert "Traceback" not in output
    assert (out / "metrics.jsonl").read_bytes() == metrics
    assert steps_of(out) == [10, 15]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("kept", [None, 0, 0.5])
def test_metrics_that_were_lost_or_cut_are_reported_and_the_rest_is_written(
    carp: Server,
    images: Path,
    recipe: Path,
    stopped_run: Path,
    short_run: Path,
    tmp_path: Path,
    kept: float | None,
    finished: bool,
) -> None:
    out = Path(shutil.copytree(short_run if finished else stopped_run, tmp_path / "run"))
    path, whole = out / "metrics.jsonl", (short_run / "metrics.jsonl").read_bytes()
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(whole[: int(kept * len(whole))])
    assert not path.exists() or not path.read_bytes().endswith(b"\n")
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 0, output
    assert "Traceback" not in output
    (warning,) = [line for line in output.splitlines() if "metrics.jsonl" in line and "lost" in line]
    lines = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    before = [step for step in lines if step < 15]
    assert bool(before) == (kept == 0.5)
    assert not before or f"after step {before[-1]} " in warning
    assert whole.endswith(path.read_bytes()[-200:]) or finished
    assert (lines[-1:] == [19]) == (not finished), "the steps that were made now are logged"


def test_a_changed_number_in_the_metrics_is_reported(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    path = out / "metrics.jsonl"
    content = path.read_bytes()
    place = content.index(b'"loss": ') + 8
    path.write_bytes(content[:place] + (b"3" if content[place : place + 1] != b"3" else b"4") + content[place + 1 :])
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 0, output
    (warning,) = [line for line in output.splitlines() if "metrics.jsonl" in line]
    assert "changed since the checkpoint" in warning


@pytest.mark.parametrize("data", [{"images": 64}, {"images": 64, "name": "x", "fingerprint": 3}, [1]])
def test_a_description_without_its_images_is_refused(
    carp: Server, images: Path, recipe: Path, stopped_run: Path, tmp_path: Path, data: object
) -> None:
    out = Path(shutil.copytree(stopped_run, tmp_path / "run"))
    info = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(info | {"data": data}))
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 2, output
    (error,) = output.splitlines()
    assert "run.json" in error


def test_a_damaged_line_of_metrics_is_left_out_of_the_plot_with_a_warning(
    carp: Server, images: Path, recipe: Path, short_run: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(short_run, tmp_path / "run"))
    content = bytearray((out / "metrics.jsonl").read_bytes())
    content[content.index(b"\n") + 1] = ord("X")  # the second line
    (out / "metrics.jsonl").write_bytes(content)
    code, output = carp.run("train", images, "--recipe", recipe, "--out", out, "epochs=5")
    assert code == 0, output
    assert "metrics.jsonl: line 2 " in output
    assert "Traceback" not in output


class Malicious:
    """Unpickling it creates a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_a_pickle_in_the_place_of_tensors_is_refused_and_not_run(stopped_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(stopped_run / "checkpoints", tmp_path / "checkpoints")) / "step-00000015"
    target = tmp_path / "attacked"
    (folder / "tensors.safetensors").write_bytes(pickle.dumps(Malicious(target)))
    # An attacker can write a manifest that matches.
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["content"]["tensors_sha256"] = sha256_of_file(folder / "tensors.safetensors")
    manifest["sha256"] = sha256_of_json(manifest["content"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError):
        checkpoint.load(folder)
    assert not target.exists()
    pickle.loads((folder / "tensors.safetensors").read_bytes())  # noqa: TID251 - shows that the attack works
    assert target.exists()
