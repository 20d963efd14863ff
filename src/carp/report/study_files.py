"""The files of a study, written after every job: table.md, table.csv and plot.png."""

from collections.abc import Callable

from carp.errors import DataError, MissingExtraError
from carp.files.atomic import write_atomic
from carp.report.study_plot import plot_study
from carp.report.tables.study_table import study_csv, study_markdown
from carp.studies.study import Study

TABLE, VALUES, PLOT = "table.md", "table.csv", "plot.png"


def write_study(study: Study, *, warn: Callable[[str], None]) -> None:
    """Write the table and the plot of the finished jobs; nothing if there are none."""
    if not study.rows:
        return
    try:
        write_atomic(study.folder / TABLE, study_markdown(study))
        write_atomic(study.folder / VALUES, study_csv(study))
        plot_study(study, study.folder / PLOT)
    except MissingExtraError as error:
        warn(f"{PLOT} was not drawn: {error}")
    except OSError as error:
        raise DataError(
            f"cannot write {study.folder}: {error.strerror or error}. The jobs are kept; free some space, then rerun "
            "the same command."
        ) from error
