"""Shared parts of all figures: matplotlib if it is installed, colours, tidy axes, and atomic PNG files."""

from pathlib import Path
from typing import Any

from carp.errors import DataError, MissingExtraError
from carp.files.atomic import replacing

STUDENT, TEACHER, GREY, FAINT = "#1f77b4", "#ff7f0e", "#555555", "#b8b8c0"
INK, RULE = "#22242a", "#d5d8de"
BRANCHES = {"student": ("student (θ)", STUDENT, "o"), "teacher": ("teacher (ξ)", TEACHER, "s")}


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
        from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("matplotlib is not installed. Run `pip install 'carp-ssl[log]'`.") from None
    margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)  # inches, between panels and around them
    return Figure(figsize=(width, height), layout=margins)


def tidy(axis: Any) -> None:
    """Apply the common style to an axis."""
    axis.title.set_size(11)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as a PNG."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120, format="png")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another place with --out.") from error
