"""CARP's recipe and SimCLR in the same time: both train, resume, and are judged in the same way."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

import carp
from benchmarks import photographs
from carp.console.progress import Display
from carp.errors import CheckpointError, ConfigError
from carp.images.open_source import open_images
from tests.helpers import tiny_images, write_images, write_recipe


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    train = write_images(tmp_path / "train", tiny_images(64), classes=4)
    test = write_images(tmp_path / "test", tiny_images(16, seed=1), classes=4)
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=2)
    runs, out = tmp_path / "runs", tmp_path / "rows.jsonl"
    words = f"--train {train} --test {test} --recipe {recipe} --minutes 1 --runs {runs} --out {out}"
    return [*words.split(), "--settings", "lr=0.5", "--set", "global_size=24"]


def test_both_are_measured_once(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(photographs, "_epochs", lambda training, seconds: 2)  # not thousands of a minute
    photographs.main(command)
    first, second = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert list(first["knn"]) == ["raw pixels", "untrained", "student", "teacher"]
    assert list(second["knn"]) == ["student"]
    assert all(0 <= value <= 100 for row in (first, second) for value in row["knn"].values())
    assert (first["epochs"], second["epochs"]) == (2, 2)
    assert second["settings"]["lr"] == 0.5
    assert (first["size"], second["size"]) == (24, 24)
    assert first["recipe"].endswith("tiny.yaml global_size=24")
    capsys.readouterr()
    monkeypatch.setattr(photographs, "_carp", None)
    photographs.main(command)
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 5
    assert rows[2].startswith("|  | raw pixels |  | 0 | 0 |")
    with pytest.raises(CheckpointError, match="other settings"):
        photographs.main([*command, "--settings", "lr=0.6"])
    rows_before = (tmp_path / "rows.jsonl").read_text()
    with pytest.raises(ConfigError, match=r"a run of 1 minutes, received --minutes 2. Give another --runs"):
        photographs.main([*command, "--minutes", "2", "--method", "simclr"])
    assert (tmp_path / "rows.jsonl").read_text() == rows_before


def test_simclr_needs_the_settings_of_a_run_of_carp(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="carp-seed0"):
        photographs.main([*command, "--method", "simclr"])
    assert not (tmp_path / "rows.jsonl").exists()


def test_pixels_are_those_of_small_images(tmp_path: Path) -> None:
    train, test = (
        open_images(
            write_images(tmp_path / name, tiny_images(32 - 8 * seed, 48, seed=seed), classes=4), Display(quiet=True)
        )
        for seed, name in enumerate(("train", "test"))
    )
    run = carp.train(train, tmp_path / "run", write_recipe(tmp_path / "tiny.yaml", epochs=1), quiet=True)
    expected = carp.evaluate("knn", run.folder, train, test=test, branch="raw pixels", k=20).values["top1@20"]
    assert photographs._pixels(train, test) == {"raw pixels": pytest.approx(expected)}


def test_epochs_follow_from_the_time() -> None:
    class Training:
        class loader:  # noqa: N801
            steps_per_epoch = 10

        def time_steps(self, count: int, clock: object) -> list[float]:
            return [5.0] + [1.0] * (count - 1)  # the first step is slow

    assert photographs._epochs(Training(), 100.0) == 9  # type: ignore[arg-type]
    assert photographs._epochs(Training(), 1.0) == 1  # type: ignore[arg-type]


def test_an_interrupted_run_counts_whole() -> None:
    assert photographs._minutes(60.0, 0, 100) == 1.0
    assert photographs._minutes(60.0, 50, 100) == 2.0
    assert photographs._minutes(60.0, 100, 100) is None
