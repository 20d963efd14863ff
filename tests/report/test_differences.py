"""Differences to the published rows of CARP."""

import pytest

from carp.errors import DataError
from carp.evaluation.result import Result
from carp.report.tables.columns import Column
from carp.report.tables.compose import compose
from carp.report.tables.join import Row, Source, Table, Value
from carp.report.tables.paper import layout
from carp.report.tables.render import table_text

PETS, GTSRB = Column("knn", "pets", "top1_k20"), Column("knn", "gtsrb", "top1_k20")


def source(name: str, **values: float) -> list[Source]:
    """A model with k-NN accuracies on datasets."""
    return [
        Source(Result("knn", {"top1@20": value}, data={"name": data}, model={"name": name, "hash": name}), name, "")
        for data, value in values.items()
    ]


def differences(table: Table) -> dict[str, dict[Column, Value]]:
    rows = [row for row in table.rows if " − " in row.name]
    return {row.name: {column: value for (r, column), value in table.cells.items() if r is row} for row in rows}


def test_every_model_is_compared_with_both_kinds_of_views_of_the_longest_training() -> None:
    made = compose(
        source("a", pets=0.9, gtsrb=0.5) + source("b", pets=0.8), layout("knn-full"), with_paper=True, difference=True
    )
    found = differences(made)
    assert list(found) == [
        "a − CARP, 400 epochs",
        "a − CARP (mc), 400 epochs",
        "b − CARP, 400 epochs",
        "b − CARP (mc), 400 epochs",
    ]
    assert found["a − CARP, 400 epochs"] == {
        PETS: Value(pytest.approx(90 - 86.8), is_difference=True),
        GTSRB: Value(pytest.approx(50 - 75.3), is_difference=True),
    }
    assert found["b − CARP (mc), 400 epochs"] == {PETS: Value(pytest.approx(80 - 83.9), is_difference=True)}
    # A model is followed by its differences, which are never marked as best
    names = [row.name for row in made.rows]
    assert names[names.index("a") + 1].startswith("a − CARP")
    assert not {row.name for row, _ in made.best | made.second} & set(found)


def test_a_table_with_one_row_of_carp_has_one_difference() -> None:
    result = Result("kmeans", {"nmi": 0.5}, data={"name": "gtsrb"}, model={"name": "a", "hash": "a"})
    made = compose([Source(result, "a", "")], layout("kmeans"), difference=True)
    assert list(differences(made)) == ["a − CARP"]
    assert [row.name for row in made.rows] == ["a", "a − CARP"]  # published rows are shown only on request


def test_signs_are_shown_in_every_format() -> None:
    made = compose(source("a", pets=0.9, gtsrb=0.5), None, with_paper=True, difference=True)
    for format, minus in (("md", "a − CARP, 400"), ("latex", "a $-$ CARP, 400")):
        (line,) = [line for line in table_text(made, format).splitlines() if minus in line]
        assert "+3.2" in line
        assert "-25.3" in line
    (line,) = [line for line in table_text(made, "csv").splitlines() if "a − CARP, 400" in line]
    assert [round(float(cell), 6) for cell in line.split(",")[-2:]] == [3.2, -25.3]


def test_data_that_the_paper_does_not_have_cannot_be_compared() -> None:
    with pytest.raises(DataError, match="the paper has no numbers for knn on birds"):
        compose(source("a", birds=0.5), None, difference=True)
    assert Row("CARP", 400, published=True) in layout("knn").rows
