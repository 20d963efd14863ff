"""How far models are from the published rows of CARP, as rows of a table."""

from collections.abc import Sequence

from carp.report.tables.columns import Column
from carp.report.tables.join import Cells, Row, Value

_OURS = "CARP"


def with_differences(
    rows: Sequence[Row], cells: Cells, published: Sequence[Row], their_cells: Cells, columns: Sequence[Column]
) -> tuple[list[Row], Cells]:
    """Add, below every model, its differences from the published rows of CARP.

    If the paper has both, models are compared with two rows of CARP, without and with multi-crop, each the one with the
    longest training.
    """
    longest: dict[str, Row] = {}
    for row in published:
        before = longest.get(row.name)
        if row.name.startswith(_OURS) and (before is None or (row.epochs or 0) >= (before.epochs or 0)):
            longest[row.name] = row
    extended, added = list[Row](), dict(cells)
    for row in rows:
        extended.append(row)
        for theirs in longest.values():
            epochs = f", {theirs.epochs} epochs" if theirs.epochs else ""
            difference = Row(f"{row.name} − {theirs.name}{epochs}", compared=False, key=row.key)
            shared = {
                column: (cells[row, column], their_cells[theirs, column])
                for column in columns
                if (row, column) in cells and (theirs, column) in their_cells
            }
            for column, (own, other) in shared.items():
                added[difference, column] = Value(own.mean - other.mean, is_difference=True)
            extended += [difference] if shared else []
    return extended, added
