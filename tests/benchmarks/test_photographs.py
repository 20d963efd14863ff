"""CARP's recipe and SimCLR in the same time: both train, resume, and are judged in the same way."""

import json
from pathlib import Path

import pytest

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

from benchmarks import photographs
from tests.helpers import tiny_images, write_images, write_recipe


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    train = write_images(tmp_path / "train", tiny_images(64), classes=4)
    test = write_images(tmp_path / "test", tiny_images(16, seed=1), classes=4)
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=2)
    runs, out = tmp_path / "runs", tmp_path / "rows.jsonl"
    words = f"--train {train} --test {test} --recipe {recipe} --minutes 1 --runs {runs} --out {out}"
    return [*words.split(), "--settings", "lr=0.5"]


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
    capsys.readouterr()
    monkeypatch.setattr(photographs, "_carp", None)
    photographs.main(command)
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + 5
    assert rows[2].startswith("|  | raw pixels | 0 | 0 |")


def test_epochs_follow_from_the_time() -> None:
    class Loader:
        steps_per_epoch = 10

        def batches(self, first: int, last: int) -> range:
            return range(first, last)

    class Training:
        loader = Loader()

        def step(self, batch: int) -> None:
            clock[0] += 5.0 if batch == 0 else 1.0  # the first step is slow

    clock = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photographs.time, "monotonic", lambda: clock[0])
        assert photographs._epochs(Training(), 100.0) == 9  # type: ignore[arg-type]
        assert photographs._epochs(Training(), 1.0) == 1  # type: ignore[arg-type]
