"""Placeholders for objects while a pickle is read, and checks on the values that result."""

from collections.abc import Callable
from typing import Any

from carp.restricted.budget import DEPTH, Refused

_KEYS = (str, int, float, bytes, bool, type(None))
_LARGEST_KEY = 2**60  # the hashes of larger integers can be made to collide


class Dropped:
    """Stands for an object that is not needed: accepts any arguments, items and state, and keeps none."""

    __slots__ = ()


class Arguments:
    """Stands for an `argparse.Namespace`: keeps the values that are numbers, strings or flat lists of these."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def keep(self, state: Any) -> None:
        """Copy the plain values of the state."""
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(name, str) and _is_plain(value):
                self.values[name] = value


def _is_plain(value: Any) -> bool:
    parts = value if type(value) in (list, tuple) else [value]
    return all(type(part) in (str, int, float, bool, type(None)) for part in parts)


class Named:
    """A callable on the stack, with its name."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self.call = name, call


def check_key(key: Any) -> Any:
    """Return a key of a dictionary if it is plain; hashing a nested value could take unbounded time."""
    if type(key) is tuple and len(key) <= 8 and all(type(part) in _KEYS for part in key):
        return key
    if isinstance(key, Dropped | Named):
        return key
    if type(key) not in _KEYS or (type(key) is int and abs(key) > _LARGEST_KEY):
        raise Refused(f"it has a {type(key).__name__} as a key of a dictionary or an element of a set")
    return key


def check_depth(value: Any) -> None:
    """Refuse values that contain themselves or are nested more than `DEPTH` levels deep."""
    heights: dict[int, int] = {}
    path: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        item, left = stack.pop()
        children: Any = item.values() if isinstance(item, dict) else item
        if not isinstance(item, dict | list | tuple | set | frozenset):
            continue
        if left:
            path.discard(id(item))
            heights[id(item)] = height = 1 + max((heights.get(id(child), 0) for child in children), default=0)
            if height > DEPTH:
                raise Refused(f"its values are nested more than {DEPTH} levels deep")
        elif id(item) in path:
            raise Refused("one of its values contains itself")
        elif id(item) not in heights:
            path.add(id(item))
            stack.append((item, True))
            stack.extend((child, False) for child in children if isinstance(child, dict | list | tuple))
