"""`carp report`: figures about a run, end to end on the embedded images."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import carp
from carp.config import Config
from carp.encoders.assignments import assign, partitions, preferred_shares
from carp.errors import CarpWarning, ConfigError
from carp.report.figures import run_figures as figures
from carp.report.figures.certainty_curve import certainty_curve
from carp.report.figures.partition_views import PartitionedImage
from carp.report.figures.usage_curve import PrototypeUsage
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import open_run
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import TINY, tiny_images, write_images

pytest.importorskip("matplotlib")
DATA = "embedded:shapes-test"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of six steps on the embedded test images, both kept."""
    out = tmp_path_factory.mktemp("report") / "run"
    settings = {**TINY, "epochs": 2, "batch_size": 160, "keep_epochs": 1, "health_steps": 1}
    carp.train(DATA, out, quiet=True, **settings)
    return out


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as picture:
        picture.verify()
        return picture.size


def test_every_figure_is_drawn_and_they_can_be_one(cli: Cli, trained: Path, tmp_path: Path) -> None:
    words = ("eval", "knn", trained, "--epoch", "all", "--data", DATA, "--k", 20)
    assert cli(*words)[0] == 0
    code, out, err = cli("report", trained, "--data", DATA, "--out", tmp_path / "figures", "--limit", 50)
    assert code == 0, err
    assert "note:" not in err
    files = {path.stem: path for path in (tmp_path / "figures").iterdir()}
    assert set(files) == {"certainty", "usage", "partitions", "epochs", "report"}
    assert f"page: {files.pop('report')}" in out
    assert all(f"figure: {path}" in out for path in files.values())
    sizes = {name: size_of(path) for name, path in files.items()}
    code, out, err = cli("report", trained, "--data", DATA, "--out", tmp_path / "all.png", "--limit", 50)
    assert code == 0, err
    assert out.count("figure: ") == 1
    width, height = size_of(tmp_path / "all.png")
    assert width == max(w for w, _ in sizes.values())
    in_a_row = max(sizes["epochs"][1], sizes["usage"][1])
    assert height == pytest.approx(sizes["certainty"][1] + in_a_row + sizes["partitions"][1], abs=4)


def test_without_images_the_records_are_drawn(cli: Cli, trained: Path) -> None:
    code, out, err = cli("report", trained)
    assert code == 0
    assert str(trained / "report" / "certainty.png") in out
    assert "--data" in err
    assert not (trained / "report" / "usage.png").exists()


def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[Any, ...]]:
    """What the drawing functions are given, by name; they still draw."""
    given: dict[str, tuple[Any, ...]] = {}
    for name in ("draw_usage", "draw_partitions", "draw_certainty"):
        draw = getattr(figures, name)

        def remember(panel: Any, *data: Any, _name: str = name, _draw: Any = draw) -> None:
            given[_name] = data
            _draw(panel, *data)

        monkeypatch.setattr(figures, name, remember)
    return given


def test_the_data_are_those_of_the_run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(monkeypatch)
    report = carp.report_run(trained, DATA, out=tmp_path / "all.png", limit=50, images=2)
    assert report.notes == ()
    assert set(report.files) >= {"certainty", "usage", "partitions"}
    assert set(report.files.values()) == {tmp_path / "all.png"}
    (usages,), (images, titles) = given["draw_usage"], given["draw_partitions"]
    assert [usage.label for usage in usages] == ["epoch 1", "epoch 2"]
    assert all(usage.shares.sum() == pytest.approx(64 / 8) for usage in usages)  # one choice per block
    assert usages[0].choices == 50 * 4
    assert len(titles) == 4
    assert len(images) == 2
    for image in images:
        assert [share.sum() for share in (*image.student, *image.teacher)] == pytest.approx([1.0] * 8)
        assert all(view.shape == (32, 32, 3) for view in image.views)
    (curve,) = given["draw_certainty"]
    lines = [line for line in read_metrics(trained / "metrics.jsonl") if "certainty" in line]
    assert curve.largest == {
        "student": [line["certainty"] for line in lines],
        "teacher": [line["teacher_certainty"] for line in lines],
    }
    assert curve.epochs[-1] == 2.0
    assert all(1 / 8 <= value <= 1 for value in curve.largest["student"])


def test_epochs_can_be_chosen(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = drawn(monkeypatch)
    for run, epoch, expected in (
        (trained, 1, ["epoch 1"]),
        (trained, [2, 1], ["epoch 2", "epoch 1"]),
        (f"{trained}@1", None, ["epoch 1"]),
    ):
        carp.report_run(run, DATA, out=tmp_path / "all.png", limit=20, images=1, epoch=epoch)
        assert [usage.label for usage in given["draw_usage"][0]] == expected


def test_photographs_without_kept_epochs_a_teacher_or_random_partitions(tmp_path: Path) -> None:
    """The newest checkpoint is drawn; a fixed partition shows its blocks; siamese runs have two equal branches."""
    data = write_images(tmp_path / "images", tiny_images(20, 80))
    (data / "000.png").write_bytes(b"not an image")  # it would be the first to be drawn
    settings = {
        **TINY,
        "epochs": 1,
        "partition": "fixed",
        "teacher_momentum": 0,
        "block_size": 32,
        "global_size": 72,
        "workers": 0,
        "max_bad_share": 0.5,
    }
    run = tmp_path / "run"
    carp.train(data, run, quiet=True, **settings)
    with pytest.warns(CarpWarning, match="1 of 20 images .* left out"):
        files = carp.report_run(run, data, images=2).files
    assert set(files) == {"page", "certainty", "usage", "partitions"}


def test_records_of_an_older_version_have_no_certainty(trained: Path) -> None:
    lines = read_metrics(trained / "metrics.jsonl")
    older = [{key: value for key, value in line.items() if "certainty" not in key} for line in lines]
    assert certainty_curve(older, steps_per_epoch=3, block_size=8) is None
    mixed = certainty_curve([*older, *lines], steps_per_epoch=3, block_size=8)
    assert mixed == certainty_curve(lines, steps_per_epoch=3, block_size=8)


def test_mistakes_are_one_line(cli: Cli, trained: Path, tmp_path: Path) -> None:
    assert_one_line(cli("report", tmp_path / "none"), "none")
    assert_one_line(cli("report", trained, "--data", tmp_path / "none"), "none")
    assert_one_line(cli("report", trained, "--data", DATA, "--epoch", 7), "epoch 7", "1, 2")
    assert_one_line(cli("report", trained, "--epoch", "x"), "--epoch", "'x'")
    (tmp_path / "file").write_text("")
    assert_one_line(cli("report", trained, "--out", tmp_path / "file" / "b.png"), "file")
    with pytest.raises(ConfigError, match="limit must be at least 1, received 0"):
        carp.report_run(trained, limit=0)
    empty = tmp_path / "empty"
    empty.mkdir()
    for name in ("config.yaml", "run.json"):
        (empty / name).write_bytes((trained / name).read_bytes())
    assert_one_line(cli("report", empty, "--out", tmp_path / "all.png"), "nothing to draw", "certainty", "--data")


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_preferred_shares_are_counted_block_by_block(block_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carp.encoders.assignments._LOGITS_AT_A_TIME", 40)  # several parts
    generator = np.random.default_rng(0)
    x, c = generator.normal(size=(7, 5)).astype(np.float32), generator.normal(size=(16, 5)).astype(np.float32)
    parts = partitions(Config(num_prototypes=16, block_size=block_size), 3, 4)
    votes = np.zeros(16)
    for part in parts:
        for block in part.tolist():
            for image in x:
                logits = [float(image @ c[k]) for k in block]
                if block_size > 1 or logits[0] > 0:
                    votes[block[int(np.argmax(logits))]] += 1
    np.testing.assert_allclose(preferred_shares(x, c, parts), votes / (7 * 4))
    if block_size > 1:
        (shares,) = assign(x[:1], c, parts[0][0])
        powers = np.exp([float(x[0] @ c[k]) for k in parts[0][0].tolist()])
        np.testing.assert_allclose(shares, powers / powers.sum(), rtol=1e-5)


def test_partitions_are_those_of_the_first_steps(trained: Path) -> None:
    config = open_run(trained).config
    model = torch.nn.Linear(1, 1)
    stepper = Stepper(model, None, Schedules(config, 3), config, torch.device("cpu"))  # type: ignore[arg-type]
    for step, part in enumerate(partitions(config, config.seed, 4)):
        assert torch.equal(part, stepper.partition(step))


def test_usage_is_relative_to_even_use() -> None:
    even = PrototypeUsage("even", np.full(8, 1 / 4), 4, 100)
    assert even.relative.tolist() == [1.0] * 8
    assert (even.used, even.effective) == (1.0, pytest.approx(1.0))
    half = PrototypeUsage("half", np.array([0, 0.5] * 4), 4, 100)
    assert half.relative.tolist() == [2.0] * 4 + [0.0] * 4
    assert (half.used, half.effective) == (0.5, pytest.approx(0.5))
    assert PrototypeUsage("none", np.zeros(8), 1, 100).effective == 0.0


def test_the_cosine_of_a_partition() -> None:
    view, one, other = np.zeros((2, 2, 3), np.uint8), np.float32([1, 0]), np.float32([0, 1])
    image = PartitionedImage((view, view), [one, one], [one, other])
    assert (image.cosine(0), image.cosine(1)) == (pytest.approx(1), 0)


def test_a_run_ends_with_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "run" / "report" / "report.html"
    settings = {**TINY, "epochs": 1, "report": True}
    carp.train(tiny_images(), tmp_path / "run", quiet=True, **settings)
    assert '<section id="map"' in page.read_text()
    written = page.stat().st_mtime_ns
    carp.train(tiny_images(), tmp_path / "run", quiet=True, **settings)  # it is finished
    assert page.stat().st_mtime_ns == written
    monkeypatch.setitem(sys.modules, "plotly", None)
    page.unlink()
    carp.train(tiny_images(), tmp_path / "run", quiet=True, **settings)  # a missing extra is no error of the run
    assert not page.exists()


def test_without_plotly_the_figures_are_drawn(cli: Cli, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    code, out, err = cli("report", trained)
    assert code == 0
    assert "certainty.png" in out
    assert "report.html was not written" in err
    assert "pip install 'carp-ssl[explore]'" in err
    assert_one_line(cli("report", trained, "--out", trained / "page.html"), "pip install 'carp-ssl[explore]'")


def test_mistakes_of_several_runs(cli: Cli, trained: Path, tmp_path: Path) -> None:
    assert_one_line(cli("report", trained, trained, "--out", tmp_path / "a.png"), "several runs", "a.png", ".html")
    assert_one_line(cli("report", trained, trained, "--epoch", 1), "several runs", "--epoch")
    with pytest.raises(ConfigError, match="empty list"):
        carp.report_run([])
