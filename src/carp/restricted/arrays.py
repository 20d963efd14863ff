"""NumPy's arrays and numbers in a pickle, read without NumPy's own functions."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from carp.restricted.budget import Budget, Refused
from carp.restricted.objects import Named

_KINDS = re.compile(r"[<>|=]?[?biufSU]\d{0,4}")  # of the elements of arrays: never objects
_ELEMENT = 64  # bytes of a number in a list, and of its place there


class Kind:
    """Stands for `numpy.dtype(text, …)`; its state says the order of bytes."""

    def __init__(self, text: object) -> None:
        name = text.decode("latin1") if isinstance(text, bytes) else text
        if not isinstance(name, str) or not _KINDS.fullmatch(name):
            raise Refused(f"it holds an array of {str(text)[:20]!r}, which are not numbers or texts")
        self.dtype = np.dtype(name)

    def order(self, state: object) -> None:
        """Take over the order of bytes."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class ListedArray(list[Any]):
    """An array as a list of its rows; empty until its state arrives."""

    filled = False

    def fill(self, state: object, budget: Budget) -> None:
        """Take shape, type and bytes, as NumPy writes them."""
        match state:
            case (int(), shape, kind, by_columns, raw) if not self.filled:
                self.extend(rows(raw, kind, shape, by_columns=bool(by_columns), budget=budget))
                self.filled = True
            case _:
                raise Refused("it holds an array of another form than NumPy writes")


def rows(raw: object, kind: object, shape: object, *, by_columns: bool, budget: Budget) -> Any:
    """The values of an array as lists."""
    if not isinstance(raw, bytes | bytearray) or not isinstance(kind, Kind) or not isinstance(shape, tuple):
        raise Refused("it holds an array of another form than NumPy writes")
    if not 1 <= len(shape) <= 2 or not all(type(side) is int and side >= 0 for side in shape):
        raise Refused("it holds an array that has neither one nor two dimensions")
    if len(raw) != kind.dtype.itemsize * math.prod(shape):
        raise Refused("it holds an array whose bytes do not fit its shape")
    budget.charge((_ELEMENT + kind.dtype.itemsize) * (math.prod(shape) + shape[0]) + len(raw))
    if kind.dtype.itemsize == 0:
        raise Refused("it holds an array of elements without bytes")
    return np.frombuffer(raw, dtype=kind.dtype).reshape(shape, order="F" if by_columns else "C").tolist()


def scalar(kind: object, raw: object = b"") -> Any:
    """One number of NumPy's."""
    if not isinstance(kind, Kind) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize or not raw:
        raise Refused("it holds a number of another form than NumPy writes")
    return np.frombuffer(raw, dtype=kind.dtype)[0].item()


def latin1_bytes(text: object, encoding: object, budget: Budget) -> bytes:
    """`_codecs.encode(text, "latin1")`, which old protocols write for bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused(f"it asks for the encoding {str(encoding)[:20]!r}")
    budget.charge(len(text))
    return text.encode("latin1")


class _CarpArrays:
    """Names in the pickles that CARP writes for detectron2."""

    def find(self, module: str, name: str, budget: Budget) -> Any:
        """Arrays and bytes."""

        def array(shape: object, kind: object, raw: object) -> Any:
            if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
                raise Refused("it holds an array without a shape")
            dtype = Kind(kind).dtype
            if not isinstance(raw, bytearray | bytes) or len(raw) != dtype.itemsize * math.prod(shape):
                raise Refused("it holds an array whose bytes do not fit its shape")
            return np.frombuffer(raw, dtype=dtype).reshape(shape)

        def filled(raw: object = b"") -> Any:
            if not isinstance(raw, bytes | bytearray):
                raise Refused("it asks for bytes that it does not hold")
            budget.charge(len(raw))
            return bytearray(raw)

        known: dict[str, Callable[..., Any]] = {"numpy.ndarray": array, "builtins.bytearray": filled}
        full = f"{module}.{name}"
        if full not in known:
            raise Refused(f"it asks for {full[:150]}, which is not an array")
        return Named(full, known[full])

    def build(self, target: Any, _state: Any, _budget: Budget) -> None:
        """Arrays have none."""
        raise Refused(f"it sets the state of a {type(target).__name__}")

    def persistent(self, _number: Any, _budget: Budget) -> Any:
        """There is nothing outside."""
        raise Refused("it refers to something outside of itself")


CARP_ARRAYS = _CarpArrays()
