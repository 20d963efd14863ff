"""The notation of an ablation's values, and the settings that they stand for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
_FROM_TO = re.compile(rf"\[?\(?({_NUMBER})(?:\s*(?:->|→|-|,)\s*({_NUMBER}))?\)?\]?")

_PUBLISHED_EPOCHS = (25, 50, 75, 100)
_ALIKE = 5  # percent of a full run: a quarter of 50 epochs is 12 or 13


@dataclass(frozen=True)
class AxisValue:
    """A parsed value: how it is shown, its settings, and its position among the others."""

    text: str
    settings: Mapping[str, Any]
    place: float
    cost: float = 1.0
    published_as: str = ""
    """The paper's value that this one corresponds to, if it is written differently."""


@dataclass(frozen=True)
class Form:
    """The notation of values (`words`), and its parser, which returns None for other text.

    `read` takes the text, the setting that is varied, and the epochs of a full run.
    """

    words: str
    read: Callable[[str, str, int], AxisValue | None]


def _whole_number(text: str, key: str, _epochs: int) -> AxisValue | None:
    if not re.fullmatch(r"\d{1,12}", text):
        return None
    number = int(text)
    return AxisValue(str(number), {key: number}, number)


def _schedule(text: str, key: str, _epochs: int) -> AxisValue | None:
    """Return a number, or a schedule from one number to another."""
    if not (found := _FROM_TO.fullmatch(text)):
        return None
    start, end = float(found[1]), float(found[2] or found[1])
    if start == end:
        return AxisValue(f"{start:g}", {key: start}, start)
    return AxisValue(f"{start:g}->{end:g}", {key: [start, end]}, end + start * 1e-6)  # after its end as a constant


def _views(text: str, key: str, _epochs: int) -> AxisValue | None:
    """Return the global views, which are always two, and the local ones."""
    if not (found := re.fullmatch(r"2(?:\+(\d{1,4}))?", text)):
        return None
    local = int(found[1] or 0)
    return AxisValue(f"2+{local}" if local else "2", {key: local}, local, cost=2.0 + 0.25 * local)


def _length(text: str, key: str, epochs: int) -> AxisValue | None:
    """Epochs, or percent of a full run."""
    if not (found := re.fullmatch(r"(\d{1,7})(%?)", text)):
        return None
    if found[2]:
        percent, number = float(found[1]), max(1, round(epochs * int(found[1]) / 100))
    else:
        percent, number = 100 * int(found[1]) / epochs, int(found[1])
        percent = next((paper for paper in _PUBLISHED_EPOCHS if abs(paper - percent) <= _ALIKE), percent)
    return AxisValue(str(number), {key: number}, number, cost=number, published_as=f"{percent:g}")


WHOLE_NUMBER = Form("whole numbers, such as 128,256", _whole_number)
SCHEDULE = Form("numbers, or schedules such as '0.99->1'", _schedule)
VIEWS = Form("global and local views, such as 2,2+4 (there are always two global views)", _views)
LENGTH = Form("epochs, or percent of a full run, such as 10,20 or 50%,100%", _length)
