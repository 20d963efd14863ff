"""The picture of a run."""

from pathlib import Path
from typing import Any

import pytest

from carp.config import Config
from carp.report import plots


@pytest.mark.parametrize("epochs", [[1], [1, 2], [1, 2, 3], [5, 10, 15, 20], list(range(1, 201))])
def test_epochs_are_whole_numbers(epochs: list[int]) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    plots._draw_validation(axis, [{"epoch": e, "knn_student": 0.5, "knn_teacher": 0.6} for e in epochs], {})
    figure.canvas.draw()
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert ticks
    assert not any("." in tick for tick in ticks), ticks


METRICS = [
    {"step": 0, "epoch": 0, "knn_raw_pixels": 0.45, "knn_untrained": 0.2},
    {"step": 0, "epoch": 0, "loss": 9.0, "consistency": 8.0, "kl_to_uniform": 0.2},
    {"step": 9, "epoch": 1, "knn_student": 0.31, "knn_teacher": 0.3},
    {"step": 9, "health": "below raw pixels", "cause": "raw pixels have 45.0%."},
]


def drawn(metrics: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The figure that `plot_run` saves."""
    figure = pytest.importorskip("matplotlib.figure")
    saved = []
    save = figure.Figure.savefig

    def remember(self: Any, *arguments: Any, **options: Any) -> None:
        saved.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", remember)
    plots.plot_run(metrics, Config(), tmp_path / "plots.png")
    (found,) = saved
    return found


def test_baselines_are_level_lines_and_the_verdict_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figure = drawn(METRICS, monkeypatch, tmp_path)
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[1].get_lines()}
    assert lines["raw pixels, 45.0%"] == [45.0, 45.0]
    assert lines["untrained encoder, 20.0%"] == [20.0, 20.0]
    assert figure.get_suptitle() == "below raw pixels: raw pixels have 45.0%."


def test_a_negative_koleo_is_drawn_inside_the_axes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for koleo in (0.3, -0.7):
        with monkeypatch.context() as patch:
            axis = drawn([{**METRICS[1], "koleo": koleo}], patch, tmp_path).axes[0]
        lines = {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}
        assert lines["koleo"] == [koleo]
        assert axis.get_ylim()[0] <= min(0, koleo)


def test_the_metrics_of_an_older_version_are_drawn_without_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figure = drawn([METRICS[1], METRICS[2], {"step": 9, "health": "healthy"}], monkeypatch, tmp_path)
    assert [line.get_label() for line in figure.axes[1].get_lines()] == ["student (θ)", "teacher (ξ)"]
    assert figure.get_suptitle() == ""


@pytest.mark.parametrize("measure", ["knn", "label_free"])
def test_a_run_with_a_start_shows_it_as_its_baseline(measure: str) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    lines = [{"epoch": 1, f"{measure}_teacher": 0.5}, {"epoch": 2, f"{measure}_teacher": 0.6}]
    if measure == "knn":
        lines = [{**line, "knn_student": 0.4} for line in lines]
    baselines = plots._baselines([{"step": 0, f"{measure}_start": 0.45}, *lines])
    assert baselines == {f"{measure}_start": 0.45}
    plots._draw_validation(axis, lines, baselines)
    _, labels = axis.get_legend_handles_labels()
    assert "start, 45.0%" in labels
    assert ("k-NN" in axis.get_title()) == (measure == "knn")
