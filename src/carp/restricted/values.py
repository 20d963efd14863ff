"""Reads pickles of lists, dictionaries, strings, numbers and arrays, such as published ground truths."""

from typing import Any

from carp.errors import DataError
from carp.restricted.arrays import Kind, ListedArray, latin1_bytes, rows, scalar
from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.machine import Machine
from carp.restricted.objects import Named

_CORES = ("numpy.core", "numpy._core")  # before and since NumPy 2


class _PlainValues:
    """The names that NumPy writes for arrays and numbers."""

    def find(self, module: str, name: str, budget: Budget) -> Any:
        def from_buffer(raw: object, kind: object, shape: object, order: object = "C") -> Any:
            return rows(raw, kind, shape, by_columns=order == "F", budget=budget)

        def as_bytes(text: object = "", encoding: object = "latin1") -> bytes:
            return latin1_bytes(text, encoding, budget)

        calls: dict[str, Any] = {
            "numpy.dtype": lambda text, *_rest: Kind(text),
            "_codecs.encode": as_bytes,
            "__builtin__.bytes": as_bytes,
        }
        for core in _CORES:
            calls[f"{core}.multiarray._reconstruct"] = lambda *_rest: ListedArray()
            calls[f"{core}.multiarray.scalar"] = scalar
            calls[f"{core}.numeric._frombuffer"] = from_buffer
        full = f"{module}.{name}"
        if full == "numpy.ndarray":  # appears as the class of an array and is never called
            return Named(full, _never)
        if full not in calls:
            raise Refused(f"it asks for {full[:150]}")
        return Named(full, calls[full])

    def build(self, target: Any, state: Any, budget: Budget) -> None:
        if isinstance(target, ListedArray):
            target.fill(state, budget)
        elif isinstance(target, Kind):
            target.order(state)
        else:
            raise Refused(f"it sets the state of a {type(target).__name__}")

    def persistent(self, _number: Any, _budget: Budget) -> Any:
        raise Refused("it refers to an object outside the file")


def _never(*_arguments: object) -> Any:
    raise Refused("it creates an array in a way that NumPy never uses")


def read_plain_pickle(raw: bytes, place: str) -> Any:
    """Return the value of a pickle with its arrays as lists; raise a DataError if it contains anything else."""
    try:
        budget = Budget()
        budget.charge(len(raw))
        value = Machine(raw, _PlainValues(), budget).run()
        _refuse_others(value)
    except (Refused, MemoryError) as reason:
        said = " ".join(str(reason).split())[:200] or "it does not fit into memory"
        raise DataError(
            f"{place} is refused: {said}. Give a ground truth as JSON, or as a pickle of only lists, dictionaries, "
            "arrays, strings and numbers."
        ) from None
    except (Damaged, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        said = " ".join(str(error).split())[:100].rstrip(".")
        raise DataError(f"{place} is not a complete pickle: {said}. Download it again.") from None
    return value


def _refuse_others(value: Any) -> None:
    """Refuse names, types and arrays that were never filled: they are not values."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, Kind | Named) or (isinstance(item, ListedArray) and not item.filled):
            raise Refused("it contains something that is not a value")
        if isinstance(item, list | tuple | dict) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values() if isinstance(item, dict) else item
