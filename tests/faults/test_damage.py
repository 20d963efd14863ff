"""Damaged checkpoints are told, passed over and never trusted; a run folder is not mixed up with another."""

import json
import pickle
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

import carp as carp_package
from carp import checkpoint
from carp.config import FREE_KEYS, METRICS_KEYS, Config
from carp.errors import CheckpointError
from carp.files import sha256_of_file, sha256_of_json
from tests.faults.conftest import Server, wait_until
from tests.helpers import assert_same_run, steps_of, tiny_images, write_images, write_recipe

SOURCE = Path(carp_package.__file__).parent


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
    assert "continuing at step 10 of 20" in output
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
    assert "no checkpoint" in error
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


def test_nothing_in_the_source_unpickles_or_evaluates() -> None:
    forbidden = re.compile(
        r"\b(pickle|cPickle|dill|joblib|shelve|marshal)\b|torch\.load\(|\bnp\.load\(|allow_pickle|yaml\.(unsafe_)?load\("
        r"|\beval\(|\bexec\("
    )
    # The machine reads pickles without the library's unpickler, and detectron2's file is written as one
    ours = [path for path in SOURCE.rglob("*.py") if path.parent.name == "restricted"]
    files = [path for path in SOURCE.rglob("*.py") if path not in ours and path.name != "detectron2_file.py"]
    assert ours
    unpickles = re.compile(r"Unpickler\(|pickle\.loads?\(|torch\.load\((?!\'\{path\})")
    assert not [path for path in SOURCE.rglob("*.py") if unpickles.search(path.read_text())]
    assert len(files) > 30
    hits = [
        f"{path.name}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(
            re.sub(
                r"np\.load\([^)]*allow_pickle=False\)|without pickle|a published pickle|the pickle in"
                r"|torch\.load\([^)]*weights_only=True\)",
                "",
                line,
            )
        )
        and not re.search(r"\.eval\(\)|_eval\(|\bretrieval\(", line)
    ]
    assert not hits


# Which folder a run may use


@pytest.fixture
def copied_run(short_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(short_run, tmp_path / "run"))


def one_error(code: int, output: str) -> str:
    assert code == 2, output
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    return line


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_another_configuration_is_refused_with_the_difference(
    carp: Server, images: Path, recipe: Path, copied_run: Path
) -> None:
    before = snapshot(copied_run)
    words = ["train", images, "--recipe", recipe, "--out", copied_run]
    error = one_error(*carp.run(*words, "epochs=6", "seed=4", "lr=0.5"))
    assert "epochs: 5 -> 6" in error
    assert "seed: 3 -> 4" in error
    assert "lr: (0.6, 0.006) -> (0.5, 0.5)" in error
    assert "batch_size" not in error
    assert "metrics" not in error
    assert str(copied_run) in error
    assert snapshot(copied_run) == before


def test_other_images_are_refused_with_the_difference(
    carp: Server, recipe: Path, copied_run: Path, tmp_path: Path
) -> None:
    other = write_images(tmp_path / "other", tiny_images(70))
    before = snapshot(copied_run)
    error = one_error(*carp.run("train", other, "--recipe", recipe, "--out", copied_run, "epochs=5"))
    assert "other images" in error
    assert f"{other} (then " in error
    assert "has 64 before, 70 now" in error
    assert "give another --out" in error
    assert snapshot(copied_run) == before


def test_an_image_that_changed_in_the_folder_is_noticed(carp: Server, recipe: Path, tmp_path: Path) -> None:
    data = write_images(tmp_path / "images", tiny_images())
    words = ["train", data, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1"]
    assert carp.run(*words)[0] == 0
    (data / "000.png").rename(data / "renamed.png")
    assert f"{data} has 64 as before, but other names or contents." in one_error(*carp.run(*words))


def test_a_removed_image_is_told_with_the_counts_even_where_sizes_follow_from_the_images(
    carp: Server, recipe: Path, tmp_path: Path
) -> None:
    data = write_images(tmp_path / "images", tiny_images(256))
    words = ["train", data, "--recipe", recipe, "--out", tmp_path / "run", "epochs=1", "num_prototypes=256"]
    words += ["batch_size=auto"]
    assert carp.run(*words)[0] == 0
    (data / "000.png").unlink()
    error = one_error(*carp.run(*words))
    assert f"{data} has 256 before, 255 now." in error
    assert "Put the images back" in error
    assert "batch_size" not in error


@pytest.mark.parametrize("key", sorted(METRICS_KEYS))
def test_a_setting_of_the_metrics_is_refused_with_the_reason(
    images: Path, recipe: Path, copied_run: Path, key: str
) -> None:
    with pytest.raises(CheckpointError) as raised:
        carp_package.train(images, copied_run, recipe, quiet=True, epochs=5, **{key: 3})
    assert f"{key}: " in str(raised.value)
    assert f"{key} must stay, so that metrics.jsonl is that of a run never interrupted." in str(raised.value)


def test_free_keys_may_change(carp: Server, images: Path, recipe: Path, copied_run: Path) -> None:
    changes = {
        "workers": 1,
        "checkpoint_steps": 3,
        "checkpoint_minutes": 1,
        "keep_checkpoints": 2,
        "on_collapse": "stop",
    }
    assert FREE_KEYS.issuperset(changes)
    assert Config.model_fields.keys() >= FREE_KEYS
    words = [f"{key}={value}" for key, value in changes.items()]
    code, output = carp.run("train", images, "--recipe", recipe, "--out", copied_run, "epochs=5", *words)
    assert code == 0, output
    assert "finished" in output


def test_a_finished_run_says_so_and_stays_as_it_is(carp: Server, images: Path, recipe: Path, copied_run: Path) -> None:
    before = snapshot(copied_run)
    code, output = carp.run("train", images, "--recipe", recipe, "--out", copied_run, "epochs=5")
    assert code == 0, output
    assert "finished: all 20 steps" in output
    after = snapshot(copied_run)
    assert before.pop("plots.png")[:8] == after.pop("plots.png")[:8] == b"\x89PNG\r\n\x1a\n"
    assert after == before


def test_a_folder_that_is_no_run_is_refused_and_left_untouched(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "my photos"
    photos.mkdir()
    (photos / "holiday.txt").write_text("precious")
    error = one_error(*carp.run("train", images, "--recipe", recipe, "--out", photos))
    assert str(photos) in error
    assert "--out" in error
    assert snapshot(photos) == {"holiday.txt": b"precious"}


def test_a_file_in_the_place_of_the_run_folder_is_refused(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    error = one_error(*carp.run("train", images, "--recipe", recipe, "--out", file))
    assert str(file) in error
    assert file.read_text() == "precious"


def test_a_second_process_is_refused_while_the_first_trains(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words: list[object] = ["train", images, "--recipe", recipe, "--out", out]
    first = carp.start(*words)
    wait_until(lambda: steps_of(out), "a checkpoint")
    first.send(signal.SIGSTOP)  # so that it cannot finish meanwhile
    try:
        error = one_error(*carp.run(*words))
        assert "another process" in error
        assert str(out) in error
    finally:
        first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    _, output = carp.run(*words, die_at=3)  # the lock of a killed process does not remain
    assert "another process" not in output


def test_a_mistake_found_before_the_first_step_can_be_mended_in_the_same_folder(tmp_path: Path) -> None:
    """The message says what to set; it must be possible to do what it says."""
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1)
    with pytest.raises(carp_package.errors.CarpError, match="batch_size is 128"):
        carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, batch_size=128)
    carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, batch_size=64)
    assert steps_of(tmp_path / "run") == [1]


def test_a_corrupt_image_can_be_replaced_and_the_same_command_run_again(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1)
    data = write_images(tmp_path / "images", tiny_images())
    content = (data / "007.png").read_bytes()
    (data / "007.png").write_bytes(content[:1000])
    with pytest.raises(carp_package.errors.BadImagesError, match=r"007\.png"):
        carp_package.train(data, tmp_path / "run", recipe, quiet=True, max_bad_share=0)
    (data / "007.png").write_bytes(content)
    carp_package.train(data, tmp_path / "run", recipe, quiet=True)
    assert steps_of(tmp_path / "run")[-1] == 4
    assert not (tmp_path / "run" / "quarantine.jsonl").exists()
