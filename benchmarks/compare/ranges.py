"""The values that a random search may try for one setting, and the published one among them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from carp.random import Purpose, key, uniforms


class Range(ABC):
    """The values of one setting; `published` is one of them."""

    published: Any

    @abstractmethod
    def draw(self, uniform: float) -> Any:
        """Return the value for a number in [0, 1)."""

    @abstractmethod
    def __contains__(self, value: object) -> bool: ...

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class LogUniform(Range):
    """Numbers from `low` to `high` whose logarithm is distributed evenly, with three digits."""

    low: float
    high: float
    published: float

    def draw(self, uniform: float) -> float:
        """Return a number between both ends."""
        exact = self.low * math.exp(uniform * math.log(self.high / self.low))
        return min(self.high, max(self.low, float(f"{exact:.3g}")))

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g} … {self.high:g}"


class Choice(Range):
    """One of a few values, all equally likely."""

    def __init__(self, *values: Any, published: Any) -> None:
        self.values, self.published = values, published

    def draw(self, uniform: float) -> Any:
        """Return one of the values."""
        return self.values[int(uniform * len(self.values))]

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def __str__(self) -> str:
        return ", ".join("none" if value is None else f"{value:g}" for value in self.values)


def trial_settings(method: str, search: Mapping[str, Range], number: int, *, trials: int, seed: int) -> dict[str, Any]:
    """Return the settings of a trial: trial 0 is the published setting, all others are drawn.

    The draws of a setting are spread evenly over its range (a Latin hypercube): of n drawn trials, one is in each n-th
    of it, in random order. With as few trials as here, independent draws leave out half a range too often. A draw
    depends on the seed, the method, the trials and the name of the setting alone, so that another setting in the range
    does not change it.
    """
    if number == 0:
        return {name: values.published for name, values in search.items()}
    drawn = trials - 1

    def uniform(name: str) -> float:
        stream = key(seed, Purpose.TRIAL, crc32(method.encode()), drawn, crc32(name.encode()))
        within, order = uniforms(stream, 2 * drawn).reshape(2, drawn)
        part = int(np.argsort(order, kind="stable")[number - 1])
        return (part + float(within[number - 1])) / drawn

    return {name: values.draw(uniform(name)) for name, values in search.items()}
