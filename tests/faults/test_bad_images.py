"""Bad files never stop a run, and never change it: killed and continued, it sees the same substitutes."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import carp as carp_package
from tests.faults.conftest import Server, wait_until
from tests.faults.test_resume import kill_at_random_moments, newest
from tests.helpers import assert_same_run, steps_of, tiny_images, write_images

PHOTOGRAPHS = ["global_size=72", "blur=[0, 0, 0]", "epochs=5"]


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """64 images; three are bad: cut short, empty, and no image at all."""
    folder = write_images(tmp_path / "messy", tiny_images())
    (folder / "011.png").write_bytes((folder / "011.png").read_bytes()[:700])
    (folder / "029.png").write_bytes(b"")
    (folder / "050.png").write_text("these are notes")
    return folder


def listed(run: Path) -> set[str]:
    lines = (run / "quarantine.jsonl").read_text().splitlines()
    names = [Path(json.loads(line)["place"]).name for line in lines]
    assert len(names) == len(set(names)), "an image is listed twice"
    return set(names)


@pytest.mark.slow
def test_kills_change_nothing_for_small_images(carp: Server, messy: Path, recipe: Path, tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    words: list[object] = ["train", messy, "--recipe", recipe, "epochs=8", "--out"]
    code, output = carp.run(*words, unbroken)
    assert code == 0, output
    assert listed(unbroken) == {"011.png", "029.png", "050.png"}
    assert f"warning: 3 of 64 images could not be read: {unbroken / 'quarantine.jsonl'}" in output
    kill_at_random_moments(carp, [*words, broken], broken, kills=2, stride=7, seed=5)
    code, output = carp.run(*words, broken)
    assert code == 0, output
    assert output.count("cannot read the image") == 0, "what is listed is not told again"
    assert_same_run(broken, unbroken)
    assert (broken / "quarantine.jsonl").read_bytes() == (unbroken / "quarantine.jsonl").read_bytes()


@pytest.mark.slow
def test_kills_and_another_number_of_workers_change_nothing_for_photographs(
    carp: Server, messy: Path, recipe: Path, tmp_path: Path
) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    words: list[object] = ["train", messy, "--recipe", recipe, *PHOTOGRAPHS, "--out"]
    code, output = carp.run(*words, unbroken, "workers=0")
    assert code == 0, output
    assert listed(unbroken) == {"011.png", "029.png", "050.png"}
    kill_at_random_moments(carp, [*words, broken, "workers=2"], broken, kills=1, stride=6, seed=6)
    code, output = carp.run(*words, broken, "workers=1")
    assert code == 0, output
    assert_same_run(broken, unbroken)
    assert (broken / "quarantine.jsonl").read_bytes() == (unbroken / "quarantine.jsonl").read_bytes()


def test_bad_images_do_matter_or_the_comparisons_would_prove_nothing(
    messy: Path, images: Path, recipe: Path, tmp_path: Path
) -> None:
    for name, folder in (("bad", messy), ("whole", images)):
        carp_package.train(folder, tmp_path / name, recipe, quiet=True, epochs=1)
    with pytest.raises(AssertionError):
        assert_same_run(tmp_path / "bad", tmp_path / "whole")


def test_a_folder_that_changes_under_a_running_epoch(carp: Server, images: Path, recipe: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "run"
    shutil.copytree(images, folder)
    words = ["train", folder, "--recipe", recipe, "--out", out, "workers=2", *PHOTOGRAPHS]
    child = carp.start(*words)
    wait_until(lambda: newest(out) >= 5, "a checkpoint")
    (folder / "007.png").unlink()
    (folder / "008.png").write_bytes((folder / "008.png").read_bytes()[:600])
    (folder / "new.png").write_bytes((folder / "009.png").read_bytes())
    assert child.wait() == 0, child.output
    assert "Traceback" not in child.output
    assert listed(out) == {"007.png", "008.png"}
    assert steps_of(out)[-1] == 20

    code, output = carp.run(*words)
    assert code == 2, output
    (error,) = [line for line in output.splitlines() if line.startswith("carp: error: ")]
    for part in ("other images", "Restore the images", "another --out", str(out / "quarantine.jsonl")):
        assert part in error


def test_too_many_bad_images_save_the_run_and_a_higher_share_continues_it(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    folder, out = tmp_path / "images", tmp_path / "run"
    shutil.copytree(images, folder)
    words = ["train", folder, "--recipe", recipe, "--out", out, "workers=1", "checkpoint_steps=1000", *PHOTOGRAPHS]
    child = carp.start(*words)
    wait_until(lambda: "step 1/20" in child.output, "the first step")
    for number in range(6):
        path = folder / f"{number:03d}.png"
        path.write_bytes(bytes(path.stat().st_size))  # the same size, so the same fingerprint
    assert child.wait() == 5, child.output
    (error,) = [line for line in child.output.splitlines() if line.startswith("carp: error: ")]
    assert re.search(r"[456] of 64 images \(0\.0\d+\) cannot be read, more than max_bad_share=0.05 allows", error)
    assert str(out / "quarantine.jsonl") in error
    (saved,) = steps_of(out)
    assert 1 <= saved < 20
    assert 4 <= len(listed(out)) <= 6

    code, output = carp.run(*words, "max_bad_share=0.1")
    assert code == 0, output
    assert f"resuming at step {saved} of 20" in output
    assert steps_of(out)[-1] == 20
    assert len(listed(out)) == 6


@pytest.mark.parametrize("settings", [[], ["global_size=72", "workers=2"]], ids=["small images", "photographs"])
def test_a_folder_where_everything_is_broken_stops_at_once(
    carp: Server, recipe: Path, tmp_path: Path, settings: list[str]
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(1000):
        (folder / f"{number:04d}.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut")
    child = carp.start("train", folder, "--recipe", recipe, "--out", tmp_path / "run", *settings)
    assert child.wait(seconds=60) == 5, child.output
    (error,) = [line for line in child.output.splitlines() if line.startswith("carp: error: ")]
    assert "more than max_bad_share=0.05" in error
    assert "Traceback" not in child.output
    assert len(listed(tmp_path / "run")) <= 150, "it went on too long"


@pytest.mark.slow
def test_ten_kills_change_nothing_with_large_bad_photographs(carp: Server, recipe: Path, tmp_path: Path) -> None:
    large = np.repeat(np.repeat(tiny_images(64, 20), 8, axis=1), 10, axis=2)
    photos = write_images(tmp_path / "photos", large)
    for number in (1, 33, 60):
        path = photos / f"{number:03d}.png"
        path.write_bytes(path.read_bytes()[:1500])
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    words: list[object] = ["train", photos, "--recipe", recipe, "global_size=72", "local_views=2", "local_size=32"]
    code, output = carp.run(*words, "workers=2", "--out", unbroken)
    assert code == 0, output
    kill_at_random_moments(carp, [*words, "workers=2", "--out", broken], broken, kills=10, stride=8, seed=7)
    code, output = carp.run(*words, "workers=4", "--out", broken)
    assert code == 0, output
    assert_same_run(broken, unbroken)
    assert listed(broken) == {"001.png", "033.png", "060.png"}
