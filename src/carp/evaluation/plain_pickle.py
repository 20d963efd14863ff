"""Pickles from outside that hold nothing but lists, dictionaries, texts, numbers and arrays of them.

A pickle is a program. Here it is read before it is run: it may use the instructions that build plain values, and of
all names only those that NumPy writes for an array. These do not lead to NumPy but to the classes below, which take
bytes and a shape and can do nothing else. Everything else is refused before the first instruction runs.
"""

import io
import pickle
import pickletools
import re
from typing import Any

import numpy as np

from carp.errors import DataError

_PLAIN_VALUES = """
PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT
STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
BYTEARRAY8 EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS
PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET MEMOIZE
"""
_ALLOWED = frozenset({*_PLAIN_VALUES.split(), "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"})  # the last four: arrays
_MEMO = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_LARGEST = 2**28  # bytes; the published ground truths have less than 300,000
_KINDS = re.compile(r"[<>|=]?[?biufSU]\d{0,4}")  # of the elements of arrays: never objects


class _Refused(Exception):  # noqa: N818 - turned into a DataError that names the file
    pass


class _Kind:
    """Stands for `numpy.dtype(text, …)`; its state tells the order of bytes."""

    def __init__(self, text: object, *_rest: object) -> None:
        name = text.decode("latin1") if isinstance(text, bytes) else text
        if not isinstance(name, str) or not _KINDS.fullmatch(name):
            raise _Refused(f"it holds an array of {str(text)[:20]!r}, which are not numbers or texts")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: object) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands for an array that NumPy is about to fill: its state is shape, type and bytes."""

    def __init__(self, *_rest: object) -> None:
        self.values: Any = None

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), shape, kind, by_columns, raw):
                self.values = _values(raw, kind, shape, by_columns=bool(by_columns))
            case _:
                raise _Refused("it holds an array of another form than NumPy writes")


class _FromBuffer:
    """Stands for an array as the newest protocol writes it."""

    def __new__(cls, raw: object = b"", kind: object = None, shape: object = (), order: object = "C") -> Any:
        """Its values."""
        return _values(raw, kind, shape, by_columns=order == "F")

    def __setstate__(self, _state: object) -> None:
        raise _Refused("it sets the state of an array")


def _values(raw: object, kind: object, shape: object, *, by_columns: bool) -> Any:
    if not isinstance(raw, bytes | bytearray) or not isinstance(kind, _Kind) or not isinstance(shape, tuple):
        raise _Refused("it holds an array of another form than NumPy writes")
    if len(shape) > 2 or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise _Refused("it holds an array of more than two dimensions")
    if len(raw) != kind.dtype.itemsize * int(np.prod(shape, dtype=object)):
        raise _Refused("it holds an array whose bytes do not fit its shape")
    return np.frombuffer(raw, dtype=kind.dtype).reshape(shape, order="F" if by_columns else "C").tolist()


class _Scalar:
    """Stands for one number of NumPy's."""

    def __new__(cls, kind: object, raw: object = b"") -> Any:
        """The number itself."""
        if not isinstance(kind, _Kind) or not isinstance(raw, bytes) or len(raw) != kind.dtype.itemsize:
            raise _Refused("it holds a number of another form than NumPy writes")
        return np.frombuffer(raw, dtype=kind.dtype)[0].item()

    def __setstate__(self, _state: object) -> None:
        raise _Refused("it sets the state of a number")


class _Bytes:
    """Stands for `_codecs.encode(text, "latin1")`, which old protocols write for bytes."""

    def __new__(cls, text: object = "", encoding: object = "latin1") -> Any:
        """The bytes."""
        if not isinstance(text, str) or encoding != "latin1":
            raise _Refused(f"it asks for the encoding {str(encoding)[:20]!r}")
        return text.encode("latin1")

    def __setstate__(self, _state: object) -> None:
        raise _Refused("it sets the state of bytes")


_NAMES: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Kind,
    ("_codecs", "encode"): _Bytes,
    ("__builtin__", "bytes"): _Bytes,
    **{
        (f"numpy.{core}.{module}", name): stands
        for core in ("core", "_core")  # before and since NumPy 2
        for module, name, stands in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _Scalar),
            ("numeric", "_frombuffer", _FromBuffer),
        )
    },
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the classes above."""
        if (module, name) not in _NAMES:
            raise _Refused(f"it asks for {module}.{name}")
        return _NAMES[module, name]


def read_plain_pickle(raw: bytes, place: str) -> Any:
    """The value of a pickle, its arrays as lists; raises before anything runs if it holds anything else."""
    try:
        _inspect(raw)
        return _without_arrays(_Reader(io.BytesIO(raw), encoding="latin1").load(), set())
    except _Refused as reason:
        raise DataError(
            f"{place} is refused: {' '.join(str(reason).split())[:200]}. A ground truth is a pickle of lists, "
            "dictionaries, arrays, texts and numbers only, or JSON."
        ) from None
    except Exception as error:  # damage: pickle raises nearly anything
        raise DataError(f"{place} is no whole pickle: {' '.join(str(error).split())[:100].rstrip('.')}.") from error


def _inspect(raw: bytes) -> None:
    """Look at every instruction without running one."""
    if len(raw) > _LARGEST:
        raise _Refused(f"it has {len(raw):,} bytes")
    for instruction, argument, _ in pickletools.genops(raw):
        if instruction.name not in _ALLOWED:
            raise _Refused(f"it has the instruction {instruction.name}")
        if instruction.name == "GLOBAL":
            module, _, name = str(argument).partition(" ")
            if (module, name) not in _NAMES:
                raise _Refused(f"it asks for {module}.{name}")
        if instruction.name in _MEMO and int(argument or 0) > len(raw):  # would take memory for all numbers below
            raise _Refused("it counts its values wrongly")


def _without_arrays(value: Any, seen: set[int]) -> Any:
    """Arrays as lists, in all lists and dictionaries; these are changed in place, each once however often it occurs."""
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, _Kind | type):
        raise _Refused("it holds something that is not a value")
    if isinstance(value, dict | list) and id(value) not in seen:
        seen.add(id(value))
        for key in value if isinstance(value, dict) else range(len(value)):
            value[key] = _without_arrays(value[key], seen)
    return value
