"""The published numbers agree with each other wherever the paper prints them twice or derives them."""

import pytest

from carp.errors import ConfigError
from carp.evaluation.data_names import AVERAGE
from carp.report.tables.columns import Column, in_order
from carp.report.tables.join import Table, Value
from carp.report.tables.paper import Layout, averaged_over, layout, layouts, published


def number(table: Layout, method: str, epochs: int | None, *column: str) -> Value:
    row = next(row for row in table.rows if (row.name, row.epochs) == (method, epochs))
    return table.cells[row, Column(*column)]


def test_every_number_is_a_percentage_and_every_table_is_full() -> None:
    tables = layouts().values()
    places = [(table, row, column) for table in tables for row in table.rows for column in table.columns]
    empty = {(table.name, row.name, column.metric) for table, row, column in places if (row, column) not in table.cells}
    assert empty == {("linear", "Supervised", "top1_k20")}
    assert all(0 < value.mean < 100 for table in tables for value in table.cells.values())
    sizes = {table.name: (len(table.rows), len(table.columns)) for table in tables}
    assert sizes == {
        "knn": (11, 12),
        "knn-full": (13, 32),
        "kmeans": (8, 12),
        "retrieval": (6, 4),
        "retrieval-full": (15, 4),
        "copies": (6, 1),
        "copies-full": (14, 1),
        "few-shot": (6, 12),
        "few-shot-full": (10, 12),
        "linear": (12, 2),
        "detection": (2, 3),
        "ablation-batch-size": (6, 1),
        "ablation-prototypes": (6, 1),
        "ablation-block-size": (20, 1),
        "ablation-momentum": (6, 1),
        "ablation-partition": (8, 1),
        "ablation-epochs": (8, 1),
    }


def test_short_tables_are_parts_of_the_long_ones() -> None:
    known_misprint = {("Supervised", "map_hard", "roxford5k")}
    compared, different = 0, set()
    for short, long in (
        ("knn", "knn-full"),
        ("retrieval", "retrieval-full"),
        ("copies", "copies-full"),
        ("few-shot", "few-shot-full"),
    ):
        for (row, column), value in layout(short).cells.items():
            if column.data != AVERAGE:
                compared += 1
                if layout(long).cells[row, column].mean != value.mean:
                    different.add((row.name, column.metric, column.data))
    assert compared == 11 * 8 + 6 * 4 + 6 + 6 * 12
    assert different == known_misprint


def test_averages_are_means_over_the_data_sets() -> None:
    full, data = layout("knn-full"), averaged_over()
    assert len(data) == 8
    averages = {cell: value for cell, value in layout("knn").cells.items() if cell[1].data == AVERAGE}
    assert len(averages) == 44
    for (row, column), value in averages.items():
        mean = sum(full.cells[row, Column("knn", name, column.metric)].mean for name in data) / len(data)
        assert value.mean == pytest.approx(mean, abs=0.1), (row.name, column.metric)  # the parts are rounded


def test_some_numbers() -> None:
    assert number(layout("knn"), "CARP", 400, "knn", "pets", "top1_k20") == Value(86.8)
    assert number(layout("kmeans"), "CARP", None, "kmeans", "gtsrb", "ari") == Value(19.6)
    assert number(layout("few-shot-full"), "CARP (mc)", 400, "few-shot", "voc07", "map_n1") == Value(47.1, 3.2)
    assert number(layout("linear"), "CARP (mc)", 400, "linear", "imagenet", "top1") == Value(75.3)


def test_where_two_tables_differ_the_appendix_counts() -> None:
    rows, cells = published()
    supervised = next(row for row in rows if row.name == "Supervised")
    assert cells[supervised, Column("retrieval", "roxford5k", "map_hard")] == Value(18.5)


def test_rows_of_all_tables_stand_in_the_papers_order() -> None:
    rows = published()[0]
    assert len(rows) == len(set(rows))
    assert [row.name for row in rows[:2]] == ["Random", "Supervised"]
    assert [(row.name, row.epochs) for row in rows[-3:]] == [("CARP (mc)", e) for e in (100, 200, 400)]
    others = [row.epochs or 0 for row in rows[2:] if not row.name.startswith("CARP")]
    assert others == sorted(others)


def test_marks_are_those_of_the_paper() -> None:
    table = layout("linear")
    marked = Table(table.columns, table.rows, table.cells)

    def names(cells: frozenset[object], metric: str) -> set[tuple[str, int | None]]:
        return {(row.name, row.epochs) for row, column in cells if column.metric == metric}  # type: ignore[misc]

    assert names(marked.best, "top1") == {("SwAV (mc)", 800), ("DINO (mc)", 800), ("CARP (mc)", 400)}
    assert names(marked.second, "top1") == {("SwAV (mc)", 400), ("MoCo-v3", 1000)}
    assert names(marked.best, "top1_k20") == {("MoCo-v3", 1000)}
    assert names(marked.second, "top1_k20") == {("CARP (mc)", 400)}


@pytest.mark.parametrize("name", ["knn-full", "retrieval-full", "few-shot-full", "detection"])
def test_columns_are_sorted_as_in_the_paper(name: str) -> None:
    assert in_order(set(layout(name).columns)) == list(layout(name).columns)


def test_a_misspelt_layout() -> None:
    with pytest.raises(ConfigError, match=r"'kmean' is not a layout\. Did you mean 'kmeans'\? Layouts: knn, knn-full"):
        layout("kmean")
