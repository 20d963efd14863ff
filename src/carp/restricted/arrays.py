"""NumPy's arrays and numbers in a pickle, read without NumPy's own functions."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from carp.restricted.budget import Budget, Refused
from carp.restricted.objects import Named

_KINDS = re.compile(r"[<>|=]?[?biufSU]\d{0,4}")  # element types of arrays; objects are not among them
_ELEMENT = 64  # bytes of a number in a list, including its slot


class Kind:
    """Stands for `numpy.dtype(text, …)`; its state gives the byte order."""

    def __init__(self, text: object) -> None:
        name = text.decode("latin1") if isinstance(text, bytes) else text
        if not isinstance(name, str) or not _KINDS.fullmatch(name):
            raise Refused(f"it contains an array of {str(text)[:20]!r}, which are neither numbers nor strings")
        self.dtype = np.dtype(name)

    def order(self, state: object) -> None:
        """Apply the byte order of the state."""
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class ListedArray(list[Any]):
    """An array as a list of its rows; empty until its state is set."""

    filled = False

    def fill(self, state: object, budget: Budget) -> None:
        """Set shape, type and bytes from a state as NumPy writes it."""
        match state:
            case (int(), shape, kind, by_columns, raw) if not self.filled:
                self.extend(rows(raw, kind, shape, by_columns=bool(by_columns), budget=budget))
                self.filled = True
            case _:
                raise Refused("it contains an array in a form that NumPy does not write")


def rows(raw: object, kind: object, shape: object, *, by_columns: bool, budget: Budget) -> Any:
    """Return the values of an array as lists."""
    if not isinstance(raw, bytes | bytearray) or not isinstance(kind, Kind) or not isinstance(shape, tuple):
        raise Refused("it contains an array in a form that NumPy does not write")
    if not 1 <= len(shape) <= 2 or not all(type(side) is int and side >= 0 for side in shape):
        raise Refused("it contains an array that has neither one nor two dimensions")
    if len(raw) != kind.dtype.itemsize * math.prod(shape):
        raise Refused("it contains an array whose number of bytes does not match its shape")
    budget.charge((_ELEMENT + kind.dtype.itemsize) * (math.prod(shape) + shape[0]) + len(raw))
    if kind.dtype.itemsize == 0:
        raise Refused("it contains an array whose elements have no bytes")
    return np.frombuffer(raw, dtype=kind.dtype).reshape(shape, order="F" if by_columns else "C").tolist()


def scalar(kind: object, raw: object = b"") -> Any:
    """Return the value of a NumPy scalar."""
    if not isinstance(kind, Kind) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize or not raw:
        raise Refused("it contains a number in a form that NumPy does not write")
    return np.frombuffer(raw, dtype=kind.dtype)[0].item()


def latin1_bytes(text: object, encoding: object, budget: Budget) -> bytes:
    """Evaluate `_codecs.encode(text, "latin1")`, which old protocols write for bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused(f"it asks for the encoding {str(encoding)[:20]!r}")
    budget.charge(len(text))
    return text.encode("latin1")


class _CarpArrays:
    """The names in the pickles that CARP writes for detectron2."""

    def find(self, module: str, name: str, budget: Budget) -> Any:
        def array(shape: object, kind: object, raw: object) -> Any:
            if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
                raise Refused("it contains an array without a shape")
            dtype = Kind(kind).dtype
            if not isinstance(raw, bytearray | bytes) or len(raw) != dtype.itemsize * math.prod(shape):
                raise Refused("it contains an array whose number of bytes does not match its shape")
            return np.frombuffer(raw, dtype=dtype).reshape(shape)

        def filled(raw: object = b"") -> Any:
            if not isinstance(raw, bytes | bytearray):
                raise Refused("it asks for bytes that it does not contain")
            budget.charge(len(raw))
            return bytearray(raw)

        known: dict[str, Callable[..., Any]] = {"numpy.ndarray": array, "builtins.bytearray": filled}
        full = f"{module}.{name}"
        if full not in known:
            raise Refused(f"it asks for {full[:150]}, which is not an array")
        return Named(full, known[full])

    def build(self, target: Any, _state: Any, _budget: Budget) -> None:
        """Refuse: arrays have no state."""
        raise Refused(f"it sets the state of a {type(target).__name__}")

    def persistent(self, _number: Any, _budget: Budget) -> Any:
        """Refuse: these files are self-contained."""
        raise Refused("it refers to an object outside the file")


CARP_ARRAYS = _CarpArrays()
