"""Charts of a page: what Plotly draws, with colours by the names of the style sheet's variables, and Plotly itself."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from carp.errors import MissingExtraError
from carp.report.pages.template import asset

Numbers = Sequence[float | int | None]
PALETTE = ("student", "teacher", "third", "fourth", "accent", "bad")


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str
    x: Numbers
    y: Numbers
    colour: str
    """A variable of the style sheet, without its dashes."""
    dash: str = "solid"
    marks: bool = False

    def as_trace(self) -> dict[str, Any]:
        """For Plotly."""
        return {
            "type": "scatter",
            "mode": "lines+markers" if self.marks else "lines",
            "name": self.name,
            "x": list(self.x),
            "y": [None if value is None else float(f"{value:.6g}") for value in self.y],
            "line": {"color": f"var(--{self.colour})", "dash": self.dash, "width": 2},
            "marker": {"size": 6},
        }


@dataclass(frozen=True)
class Chart:
    """A titled chart of several curves, or of a matrix."""

    key: str
    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line] = ()
    levels: Sequence[tuple[str, float, str]] = ()
    """Level lines: name, height, colour."""
    about: str = ""
    """One or two sentences below the title."""
    y_range: tuple[float, float] | None = None
    from_zero: bool = False
    percent: bool = False
    traces: Sequence[dict[str, Any]] = ()
    """Traces of another kind, as Plotly takes them."""
    layout: dict[str, Any] = field(default_factory=dict)
    tall: bool = False

    def as_data(self) -> dict[str, Any]:
        """For the script."""
        ends = [value for line in self.lines for value in line.x if value is not None]
        span = [min(ends), max(ends)] if ends else [0, 1]
        level_lines = [Line(name, span, [height, height], colour, "dot") for name, height, colour in self.levels]
        y_axis: dict[str, Any] = {"title": {"text": self.y_title}}
        if self.y_range:
            y_axis["range"] = list(self.y_range)
        if self.from_zero:
            y_axis["rangemode"] = "tozero"
        if self.percent:
            y_axis["tickformat"] = ".0%"
        return {
            "data": [*(line.as_trace() for line in (*self.lines, *level_lines)), *self.traces],
            "layout": {"xaxis": {"title": {"text": self.x_title}}, "yaxis": y_axis, **self.layout},
        }

    @property
    def description(self) -> str:
        """What a screen reader says: the title, and where every curve ends."""
        ends = [
            f"{line.name} ends at {value:.1%}" if self.percent else f"{line.name} ends at {value:.4g}"
            for line in self.lines
            if (value := next((v for v in reversed(line.y) if v is not None), None)) is not None
        ]
        return "; ".join([self.title, *ends])


def chart_scripts() -> list[str]:
    """Plotly, which is optional, and the script that draws charts with it."""
    return [plotly_code(), asset("charts.js")]


def plotly_code() -> str:
    """The JavaScript that the package plotly ships."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ImportError, OSError):
        raise MissingExtraError("a report page needs plotly. Run `pip install 'carp-ssl[explore]'`.") from None
