"""The plot of a study: k-NN with the deviation over seeds, the paper's values, and kl_to_uniform."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carp.errors import MissingExtraError
from carp.files.atomic import replacing
from carp.studies.agreement import noise_line
from carp.studies.study import BRANCHES, Study, StudyRow

_COLOURS = {"student": "#1f77b4", "teacher": "#ff7f0e"}
_VARIANTS = ("#1f77b4", "#d1495b", "#2a7a2a", "#7b52ab")
_INK, _GREY = "#333333", "#777777"
_PAPER = "the paper (ImageNet, single runs)"
_ACCURACY = "k-NN top-1, %"
_SOUND = "healthy"
_FAR = 0.6  # of the median: lower values are drawn at the lower edge, as they would flatten all others
_MANY = 6  # labels of an axis that fit without rotation


@dataclass(frozen=True)
class _Line:
    """One line: its label and colour, places on the axis, values, deviations, and which runs were healthy."""

    label: str
    colour: str
    x: list[float]
    y: list[float]
    deviation: list[float]
    sound: list[bool]
    seeds: list[tuple[float, float]]


def plot_study(study: Study, path: Path) -> None:
    """Draw a study as a PNG."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
        from matplotlib.layout_engine import ConstrainedLayoutEngine  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("matplotlib is not installed. Run `pip install 'carp-ssl[log]'`.") from None
    places = _Places(study)
    ours, theirs = _own_lines(study, places), _published_lines(study, places)
    panels = [(_ACCURACY, "these runs", ours)]
    if theirs:
        panels.append((_ACCURACY, _PAPER, theirs))
    panels.append(
        ("kl_to_uniform, % of its limit ln $N_B$", "0: all prototypes are used evenly", _kl_lines(study, places))
    )
    margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)  # inches
    figure = Figure(figsize=(4.3 * len(panels), 3.9), layout=margins)
    for axis, (unit, title, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, line in enumerate(lines):
            _draw(axis, line, places.beside(number, len(lines)))
        axis.set(xlabel=study.axis.replace("N_B", "$N_B$").replace(" K", " $K$"), ylabel=unit, title=title)
        places.label(axis, published=title == _PAPER)
        _tidy(axis, lines, limited=unit == _ACCURACY)
    figure.suptitle(study.title, fontsize=13, color=_INK)
    hollow = "   ○ verdict other than healthy" if not all(all(line.sound) for line in ours) else ""
    figure.supxlabel(f"{noise_line(study)}{hollow}", fontsize=8, color=_GREY)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=140, format="png")


class _Places:
    """The positions of the values of a study on the horizontal axis."""

    def __init__(self, study: Study) -> None:
        values = sorted({(row.point.place, row.point.value) for row in study.rows})
        self._x = {value: _position(study.scale, i, place) for i, (place, value) in enumerate(values)}
        self._names = {row.point.value: (row.point.value, row.point.published_as) for row in study.rows}
        self._width = max(self._x.values()) - min(self._x.values()) or 1.0

    def of(self, row: StudyRow) -> float:
        return self._x[row.point.value]

    def beside(self, number: int, count: int) -> float:
        """Return the shift of a line that keeps the error bars of several lines apart."""
        return 0.012 * self._width * (number - (count - 1) / 2)

    def label(self, axis: Any, *, published: bool) -> None:
        """Label the values; those of the paper may differ, for example in epochs."""
        turned = len(self._x) > _MANY
        names = [self._names[value][published].replace("->", "→") for value in self._x]
        axis.set_xticks(
            list(self._x.values()),
            names,
            rotation=45 if turned else 0,
            ha="right" if turned else "center",
            rotation_mode="anchor",
            fontsize=9,
        )
        room = 0.07 * self._width
        axis.set_xlim(min(self._x.values()) - room, max(self._x.values()) + room)


def _position(scale: str, number: int, place: float) -> float:
    if scale == "log":
        return math.log2(max(place, 1e-9))
    return place if scale == "linear" else float(number)


def _own_lines(study: Study, places: _Places) -> list[_Line]:
    """Return a line for each branch; with several variants, one line per variant, of the teacher if there is one."""
    if len(study.variants) > 1:
        return [
            _own_line(study.of_variant(variant), "", variant, colour, places)
            for variant, colour in zip(study.variants, _VARIANTS, strict=False)
        ]
    lines = [_own_line(study.rows, branch, branch, _COLOURS[branch], places) for branch in BRANCHES]
    return [line for line in lines if line.x]


def _own_line(rows: Sequence[StudyRow], branch: str, label: str, colour: str, places: _Places) -> _Line:
    found = [(row, mean) for row in rows if (mean := row.branch(branch))]
    shares = [
        (places.of(row), 100 * share)
        for row, _ in found
        for result in row.results
        if (share := result.accuracies.get(branch) if branch else result.accuracy) is not None
    ]
    return _Line(
        label,
        colour,
        [places.of(row) for row, _ in found],
        [mean.mean for _, mean in found],
        [mean.deviation or 0.0 for _, mean in found],
        [all(result.verdict == _SOUND for result in row.results) for row, _ in found],
        shares if any(mean.count > 1 for _, mean in found) else [],
    )


def _published_lines(study: Study, places: _Places) -> list[_Line]:
    if study.published is None:
        return []
    lines = []
    for series in study.published.series:
        rows = [row for row in study.of_variant(series.variant) if row.point.published_as in series.values]
        if not rows:
            continue
        variants = len(study.variants) > 1
        colour = _VARIANTS[study.variants.index(series.variant)] if variants else _COLOURS.get(series.branch, _INK)
        numbers = [series.values[row.point.published_as] for row in rows]
        lines.append(_plain_line(series.branch or series.variant, colour, [places.of(row) for row in rows], numbers))
    return lines


def _kl_lines(study: Study, places: _Places) -> list[_Line]:
    lines = []
    for variant, colour in zip(study.variants, _VARIANTS if len(study.variants) > 1 else (_INK,), strict=False):
        rows = [(row, row.kl_share) for row in study.of_variant(variant)]
        known = [(places.of(row), kl) for row, kl in rows if kl is not None]
        lines.append(_plain_line(variant, colour, [x for x, _ in known], [kl for _, kl in known]))
    return lines


def _plain_line(label: str, colour: str, x: list[float], y: list[float]) -> _Line:
    return _Line(label, colour, x, y, [0.0] * len(x), [True] * len(x), [])


def _draw(axis: Any, line: _Line, shift: float) -> None:
    x = [place + shift for place in line.x]
    axis.plot(x, line.y, color=line.colour, lw=1.6, alpha=0.75, zorder=2, label=line.label or None)
    if any(line.deviation):
        axis.errorbar(
            x, line.y, yerr=line.deviation, fmt="none", ecolor=line.colour, elinewidth=1.1, capsize=3, zorder=2
        )
    if line.seeds:
        seeds = [(place + shift, share) for place, share in line.seeds]
        axis.scatter(*zip(*seeds, strict=True), s=9, color=line.colour, alpha=0.35, lw=0, zorder=3)
    faces = [line.colour if sound else "white" for sound in line.sound]
    axis.scatter(x, line.y, s=34, facecolor=faces, edgecolor=line.colour, lw=1.4, zorder=4)


def _tidy(axis: Any, lines: Sequence[_Line], *, limited: bool) -> None:
    axis.title.set_size(10.5)
    axis.title.set_color(_INK)
    axis.grid(alpha=0.22)
    axis.spines[["top", "right"]].set_visible(False)
    if limited:
        _leave_out_collapsed(axis, lines)
    else:
        axis.set_ylim(0, 1.08 * max((y for line in lines for y in line.y), default=1.0) or 1.0)
    if any(line.label for line in lines):
        axis.legend(fontsize=8.5, frameon=False)


def _leave_out_collapsed(axis: Any, lines: Sequence[_Line]) -> None:
    """Mark values far below all others with their numbers at the lower edge."""
    values = [y for line in lines for y in line.y]
    if not values:
        return
    limit = _FAR * statistics.median(values)
    points = [(y, d) for line in lines for y, d in zip(line.y, line.deviation, strict=True) if y >= limit]
    low, high = min(y - d for y, d in points), max(y + d for y, d in points)
    far: dict[float, list[tuple[float, str]]] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            if y < limit:
                far.setdefault(x, []).append((y, line.colour))
    room = max(0.08 * (high - low), 0.3)
    bottom = low - (4 if far else 1) * room
    axis.set_ylim(bottom, high + 1.5 * room)
    for x, marks in far.items():
        for number, (_, colour) in enumerate(marks):
            shift = 9 * (number - (len(marks) - 1) / 2)
            _write(axis, "▼", (x, bottom + 0.3 * room), colour, shift)
        numbers = dict.fromkeys(f"{y:.3g}" for y, _ in marks)
        _write(axis, " / ".join(numbers), (x, bottom + 1.6 * room), _INK)


def _write(axis: Any, text: str, place: tuple[float, float], colour: str, shift: float = 0.0) -> None:
    axis.annotate(
        text, place, (shift, 0), textcoords="offset points", ha="center", va="bottom", fontsize=8.5, color=colour
    )
