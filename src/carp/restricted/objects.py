"""What stands for objects while a pickle is read, and what values may look like when it has been."""

from collections.abc import Callable
from typing import Any

from carp.restricted.budget import DEPTH, Refused

_KEYS = (str, int, float, bytes, bool, type(None))
_LARGEST_KEY = 2**60  # whole numbers above it can be made to collide


class Dropped:
    """Stands for an object that is not wanted: takes any arguments, items and state, and keeps none."""

    __slots__ = ()


class Named:
    """A name on the stack that may be called."""

    __slots__ = ("call", "name")

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self.call = name, call


def check_key(key: Any) -> Any:
    """Keys of dictionaries are plain: the hash of anything nested may take forever."""
    if type(key) is tuple and len(key) <= 8 and all(type(part) in _KEYS for part in key):
        return key
    if isinstance(key, Dropped | Named):
        return key
    if type(key) not in _KEYS or (type(key) is int and abs(key) > _LARGEST_KEY):
        raise Refused(f"a {type(key).__name__} is the key of a dictionary or the member of a set")
    return key


def check_depth(value: Any) -> None:
    """Refuse values that refer to themselves, or lie deeper inside one another than `DEPTH`."""
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
                raise Refused(f"its values lie more than {DEPTH} deep inside one another")
        elif id(item) in path:
            raise Refused("one of its values contains itself")
        elif id(item) not in heights:
            path.add(id(item))
            stack.append((item, True))
            stack.extend((child, False) for child in children if isinstance(child, dict | list | tuple))
