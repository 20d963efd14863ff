"""Results on the screen."""

import re

import pytest

from carp.evaluation.result import Result
from carp.report.tables.columns import Column
from carp.report.tables.join import Row, Table, Value
from carp.report.tables.render import to_screen
from carp.report.tables.summary import how_tested, print_results


def result(protocol: str, test: str, branch: str = "teacher", **values: float) -> Result:
    data = {"train": "birds/train", "test": test}
    return Result(protocol, values, data=data, model={"name": "a", "branch": branch})


def narrow(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """A terminal of so many columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")


def lines(text: str) -> list[str]:
    return re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()


def test_one_line_says_how_the_values_were_tested() -> None:
    assert how_tested([result("knn", "leave one out"), result("knn", "leave one out", "student")]) == (
        "test: leave one out"
    )
    assert how_tested([result("linear", "birds/test"), result("few-shot", "birds/test")]) == "test: birds/test"
    held = "20% of every class, held out"
    several = [result("knn", "leave one out"), result("linear", held), result("few-shot", held)]
    assert how_tested([*several, *several]) == f"test: k-NN: leave one out; Linear, Few-shot: {held}"
    assert how_tested([Result("retrieval", {}, data={"train": "birds"})]) == ""


def test_results_keep_to_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    branches = ["teacher", "student", "raw pixels", "untrained"]
    many = [
        result("few-shot", "[birds]/test", branch, **{f"mean_per_class@{n}": 0.1 * i + 0.01 * n for n in (1, 16)})
        for i, branch in enumerate(branches)
    ]
    numbers = {f"{100 * value:.1f}" for one in many for value in one.values.values()}
    for columns in (30, 40, 60, 100):
        narrow(monkeypatch, columns)
        print_results(many)
        shown = lines(capsys.readouterr().out)
        assert max(len(line) for line in shown if not line.startswith("test:")) <= max(columns, 40)
        assert numbers <= set(re.findall(r"\d+\.\d", " ".join(shown))), columns
        assert shown[-1] == "test: [birds]/test"


def test_a_table_keeps_to_the_width_of_the_terminal_and_nothing_is_folded_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tuple(Row(f"a very long name of a model that someone gave it, number {i} (teacher)") for i in range(3))
    columns = tuple(Column("knn", f"a long name of some images {i}", "top1_k20") for i in range(4))
    cells = {(row, c): Value(10.0 * i + j, 1.5) for i, row in enumerate(rows) for j, c in enumerate(columns)}
    table = Table(columns, rows, cells)
    to_screen(table)
    assert sum(rows[0].name in line for line in capsys.readouterr().out.splitlines()) == 1
    narrow(monkeypatch, 80)
    to_screen(table)
    shown = lines(capsys.readouterr().out)
    assert max(map(len, shown)) <= 80
    assert {f"{value.mean:.1f} ± 1.5" for value in cells.values()} <= set(re.findall(r"\S+ ± \S+", " ".join(shown)))
