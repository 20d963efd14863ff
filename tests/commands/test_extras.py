"""Commands without the extra that they need: one line that says how to install it, or a protocol that is skipped."""

import subprocess
import sys
from pathlib import Path

import pytest

from carp.evaluation.result import Result
from tests.commands.conftest import Cli, assert_one_line

_WITHOUT = """
import sys
for name in ("faiss", "sklearn", "scipy"):
    sys.modules[name] = None
from carp.cli import main
main()
"""


def test_all_skips_the_protocols_whose_extra_is_missing(run: Path, labelled: Path, tmp_path: Path) -> None:
    words = ["eval", "all", run, "--branch", "teacher", "--data", labelled, "--out", tmp_path]
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    notes = [line for line in ended.stderr.splitlines() if "skipped" in line]
    assert len(notes) == 1, ended.stderr
    assert "kmeans was skipped" in notes[0]
    assert "pip install 'carp-ssl[eval]'" in notes[0]
    protocols = {path.name.partition("-")[0] for path in (tmp_path / "results").iterdir()}
    assert protocols == {"knn", "linear", "few"}


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("faiss", ["eval", "kmeans", "RUN", "--data", "DATA", "--out", "OUT"], "eval"),
        ("sklearn", ["eval", "kmeans", "RUN", "--data", "DATA", "--out", "OUT"], "eval"),
        ("faiss", ["duplicates", "DATA", "--model", "RUN", "--out", "OUT"], "eval"),
        ("faiss", ["explore", "RUN", "--data", "DATA"], "eval"),
        ("starlette", ["explore", "RUN", "--data", "DATA"], "explore"),
        ("uvicorn", ["explore", "RUN", "--data", "DATA"], "explore"),
        ("pyarrow", ["embed", "RUN", "--data", "DATA", "--out", "OUT", "--format", "parquet"], "parquet"),
        ("pyarrow", ["eval", "knn", "RUN", "--data", "DATA", "--predictions", "PARQUET"], "parquet"),
        ("fsspec", ["data", "check", "s3://bucket/a.tar"], "remote"),
        ("onnx", ["export", "RUN", "--format", "onnx", "--out", "ONNX"], "onnx"),
        ("matplotlib", ["table", "RESULT", "--out", "PNG"], "log"),
        ("submitit", ["train", "DATA", "--out", "OUT", "--submit", "nodes=1"], "cluster"),
        ("tensorboard", ["train", "DATA", "--out", "OUT", "--recipe", "RECIPE", "tensorboard=true"], "log"),
        ("wandb", ["train", "DATA", "--out", "OUT", "--recipe", "RECIPE", "loggers=[wandb]"], "wandb"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_command_without_its_extra_says_how_to_install_it(
    module: str,
    words: list[str],
    extra: str,
    cli: Cli,
    run: Path,
    labelled: Path,
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = tmp_path / "result.json"
    Result("knn", {"top1@20": 0.5}, data={"train": "birds"}, model={"name": "a", "hash": "1"}).write(result)
    places = {"RUN": run, "DATA": labelled, "RECIPE": recipe, "RESULT": result, "OUT": tmp_path / "out"}
    places |= {"PNG": tmp_path / "a.png", "ONNX": tmp_path / "a.onnx", "PARQUET": tmp_path / "a.parquet"}
    for name in [module, *sys.modules]:
        if name.partition(".")[0] == module or name == f"torch.utils.{module}":
            monkeypatch.setitem(sys.modules, name, None)
    assert_one_line(cli(*(places.get(word, word) for word in words)), f"pip install 'carp-ssl[{extra}]'")
