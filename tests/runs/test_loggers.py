"""Experiment trackers: they receive the numbers of metrics.jsonl, continue their records, and never end a run."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import carp
from carp.errors import ConfigError, MissingExtraError
from carp.runs import loggers
from carp.runs.loggers import Logger, Loggers
from carp.runs.metrics_log import read_metrics
from tests.helpers import tiny_images, write_recipe

VALUES = [{"loss": 3.5 - step, "kl_to_uniform": 0.25, "health": "healthy", "epoch": 1} for step in range(3)]


def log(folder: Path, name: str, steps: range) -> None:
    opened = Loggers(folder, [name], {"lr": [2.0, 0.02], "epochs": 5}, pytest.fail)
    for step in steps:
        opened.add(step, VALUES[step])
    opened.close()


class Recorder(Logger):
    """A tracker that keeps what it gets, and fails on request."""

    name, extra = "recorder", "none"
    seen: list[tuple[int, dict[str, float]]]
    fails_at: int | None = None

    def __init__(self, folder: Path, record: str | None, settings: Mapping[str, Any]) -> None:
        self.continued, self.settings = record, settings
        type(self).seen = []

    @property
    def record(self) -> str:
        return self.continued or "first"

    def add(self, step: int, values: Mapping[str, float]) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server\nis gone")
        self.seen.append((step, dict(values)))

    def close(self) -> None:
        self.seen.append((-1, {}))


def test_a_tracker_gets_numbers_only_and_its_record_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loggers._LOGGERS, "recorder", Recorder)  # type: ignore[arg-type]
    log(tmp_path, "recorder", range(2))
    assert Recorder.seen == [
        (0, {"loss": 3.5, "kl_to_uniform": 0.25}),
        (1, {"loss": 2.5, "kl_to_uniform": 0.25}),
        (-1, {}),
    ]
    assert json.loads((tmp_path / "loggers.json").read_text()) == {"recorder": "first"}
    (tmp_path / "loggers.json").write_text('{"recorder": "second"}')
    opened = Loggers(tmp_path, ["recorder", "recorder"], {}, pytest.fail)
    assert opened._open["recorder"].record == "second"
    (tmp_path / "loggers.json").write_text("[damaged")
    assert Loggers(tmp_path, ["recorder"], {}, pytest.fail)._open["recorder"].record == "first"


def test_a_tracker_that_fails_is_dropped_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loggers._LOGGERS, "recorder", Recorder)  # type: ignore[arg-type]
    monkeypatch.setattr(Recorder, "fails_at", 1)
    said: list[str] = []
    opened = Loggers(tmp_path, ["recorder"], {}, said.append)
    for step, values in enumerate(VALUES):
        opened.add(step, values)
    opened.close()
    assert [step for step, _ in Recorder.seen] == [0]
    assert len(said) == 1
    assert "recorder failed" in said[0]
    assert "the server is gone" in said[0]


def test_a_run_goes_on_without_its_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Recorder, "fails_at", 2)
    monkeypatch.setitem(loggers._LOGGERS, "trackio", Recorder)  # type: ignore[arg-type]
    recipe = write_recipe(tmp_path / "tiny.yaml", epochs=1)
    run = carp.train(tiny_images(), tmp_path / "run", recipe, quiet=False, loggers=["trackio"])
    assert capsys.readouterr().err.count("trackio failed") == 1
    losses = {line["step"]: line["loss"] for line in read_metrics(run.folder / "metrics.jsonl") if "loss" in line}
    assert len(losses) == 4
    assert {step: values["loss"] for step, values in Recorder.seen if "loss" in values} == {
        step: loss for step, loss in losses.items() if step < 2
    }


def test_an_unknown_tracker_and_a_missing_package_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="loggers"):
        carp.train(tiny_images(), tmp_path / "run", write_recipe(tmp_path / "tiny.yaml", loggers=["wandbb"]))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'carp-ssl\[wandb\]'"):
        Loggers(tmp_path, ["wandb"], {}, pytest.fail)


def test_mlflow_keeps_the_numbers_in_a_local_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "run"
    folder.mkdir()
    log(folder, "mlflow", range(2))
    log(folder, "mlflow", range(2, 3))  # a resumed run
    client = tracking.MlflowClient((tmp_path / "mlruns").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("carp").experiment_id])
    assert [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")] == [
        (step, values["loss"]) for step, values in enumerate(VALUES)
    ]
    assert found.data.params["epochs"] == "5"
    assert found.info.status == "FINISHED"


def test_wandb_keeps_the_numbers_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    log(tmp_path, "wandb", range(3))
    record = json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    (file,) = tmp_path.rglob("*.wandb")
    assert record in file.name
    end = time.monotonic() + 30  # another process of wandb writes the file, sometimes after `finish` has returned
    while file.read_bytes().count(b"loss") < 3 and time.monotonic() < end:
        time.sleep(0.1)
    content = file.read_bytes()
    assert b"kl_to_uniform" in content
    assert content.count(b"loss") >= 3


def test_trackio_keeps_the_numbers_in_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio is not installed")
    log(tmp_path, "trackio", range(3))
    databases = list((tmp_path / "trackio").rglob("*.db"))
    assert databases, "nothing was written"
