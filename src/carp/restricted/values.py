"""Pickles of lists, dictionaries, texts, numbers and arrays of them, such as published ground truths."""

from typing import Any

from carp.errors import DataError
from carp.restricted.arrays import Kind, ListedArray, latin1_bytes, rows, scalar
from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.machine import Machine
from carp.restricted.objects import Named

_CORES = ("numpy.core", "numpy._core")  # before and since NumPy 2


class _PlainValues:
    """Names that NumPy writes for arrays and numbers."""

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
        if full == "numpy.ndarray":  # named as the class of an array, never called
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
        raise Refused("it refers to something outside of itself")


def _never(*_arguments: object) -> Any:
    raise Refused("it makes an array in another way than NumPy writes")


def read_plain_pickle(raw: bytes, place: str) -> Any:
    """The value of a pickle, its arrays as lists; a DataError if it holds anything else."""
    try:
        budget = Budget()
        budget.charge(len(raw))
        value = Machine(raw, _PlainValues(), budget).run()
        _refuse_others(value)
    except (Refused, MemoryError) as reason:
        said = " ".join(str(reason).split())[:200] or "it does not fit into memory"
        raise DataError(
            f"{place} is refused: {said}. A ground truth is a pickle of lists, dictionaries, arrays, texts and numbers "
            "only, or JSON."
        ) from None
    except (Damaged, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise DataError(f"{place} is no whole pickle: {' '.join(str(error).split())[:100].rstrip('.')}.") from None
    return value


def _refuse_others(value: Any) -> None:
    """Arrays that were never filled, types and names are not values."""
    waiting, seen = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, Kind | Named) or (isinstance(item, ListedArray) and not item.filled):
            raise Refused("it holds something that is not a value")
        if isinstance(item, list | tuple | dict) and id(item) not in seen:
            seen.add(id(item))
            waiting += item.values() if isinstance(item, dict) else item
