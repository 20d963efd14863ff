"""`predictions=FILE`: one row per test image, right as often as the result says."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from tests.commands.conftest import Cli, assert_one_line


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_predictions_are_right_as_often_as_reported(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.csv"
    words = ["eval", "knn", run, "k=[5,10]", f"predictions={file}", "--data", labelled, "--out", tmp_path / "out"]
    code, out, err = cli(*words)
    assert code == 0, err
    assert f"predictions: {file}" in out
    rows = read_csv(file)
    assert list(rows[0]) == [
        "model", "path", "label", "prediction@5", "score@5", "prediction@10", "score@10"
    ]  # fmt: skip
    assert [row["model"] for row in rows] == ["student"] * 66 + ["teacher"] * 66
    assert {row["path"] for row in rows} == {str(path) for path in labelled.glob("*/*.png")}
    assert all(Path(row["path"]).parent.name == row["label"] for row in rows)
    assert all(0 < float(row["score@5"]) <= 1 for row in rows)
    for branch in ("student", "teacher"):
        values = carp.evaluate("knn", run, labelled, k=[5, 10], branch=branch, out=tmp_path).values
        own = [row for row in rows if row["model"] == branch]
        for k in (5, 10):
            assert np.mean([row["label"] == row[f"prediction@{k}"] for row in own]) == values[f"top1@{k}"]


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("linear", {"cached": True, "epochs": 3, "lrs": [0.1, 1.0]}),
        ("linear", {"cached": False, "epochs": 2, "lrs": [0.1, 1.0]}),
        ("few-shot", {"shots": ["full"]}),
        ("kmeans", {"seeds": [3], "redos": 2}),
    ],
    ids=["cached", "images", "few-shot", "kmeans"],
)
def test_every_protocol_of_features_writes_what_it_predicts(
    protocol: str, settings: dict[str, Any], run: Path, labelled: Path, tmp_path: Path
) -> None:
    if protocol == "kmeans":
        pytest.importorskip("faiss", reason="faiss is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    file = tmp_path / "answers.parquet"
    result = carp.evaluate(protocol, run, labelled, out=tmp_path, predictions=file, **settings)
    rows = parquet.read_table(file).to_pylist()
    assert len(rows) == (66 if protocol == "kmeans" else 12)  # or a fifth of 22 in each of three classes
    (prediction,) = (name for name in rows[0] if name.startswith("prediction"))
    value = next(v for name, v in result.values.items() if name in ("top1", "top1@full", "accuracy"))
    assert np.mean([row["label"] == row[prediction] for row in rows]) == pytest.approx(value)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_predictions_that_cannot_be_written_are_refused_at_once(
    cli: Cli, run: Path, labelled: Path, tmp_path: Path
) -> None:
    def asked(protocol: str, file: object) -> tuple[int, str, str]:
        return cli("eval", protocol, run, "--data", labelled, "--predictions", file, "--out", tmp_path / "out")

    with pytest.raises(carp.errors.ConfigError, match=r"knn, kmeans, linear, few-shot, .* received retrieval"):
        carp.evaluate("retrieval", run, labelled, predictions=tmp_path / "a.csv", out=tmp_path / "out")
    assert_one_line(asked("knn", tmp_path / "a.txt"), ".csv or .parquet", "a.txt")
    assert_one_line(asked("knn", tmp_path / "none" / "a.csv"), "there is no folder", "none")
    assert not (tmp_path / "out").exists()
