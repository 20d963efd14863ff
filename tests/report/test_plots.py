"""The picture of a run."""

import pytest

from carp.report import plots


@pytest.mark.parametrize("epochs", [[1], [1, 2], [1, 2, 3], [5, 10, 15, 20], list(range(1, 201))])
def test_epochs_are_whole_numbers(epochs: list[int]) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axis = figure.subplots()
    plots._draw_knn(axis, [{"epoch": e, "knn_student": 0.5, "knn_teacher": 0.6} for e in epochs])
    figure.canvas.draw()
    ticks = [label.get_text() for label in axis.get_xticklabels()]
    assert ticks
    assert not any("." in tick for tick in ticks), ticks
