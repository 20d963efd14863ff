"""An interpreter for pickles: it executes the instructions that build values, and looks up every name in a vocabulary.

`pickle.Unpickler` allocates what a file claims to need. This interpreter compares every length with the bytes of the
file, keeps the memo in a dictionary, and charges each value to the budget before it creates it.
"""

import codecs
import pickle
import struct
from collections.abc import Callable, Sequence
from mmap import mmap
from typing import Any, Protocol

from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.objects import Dropped, Named, check_depth, check_key

Buffer = bytes | mmap
_SCALAR, _CONTAINER, _SET, _SLOT, _ENTRY = 64, 120, 260, 32, 200  # bytes, more than CPython needs
_LONGEST_NUMBER = 1024  # bytes of an integer


class Vocabulary(Protocol):
    """The meaning of names, states and persistent ids in one kind of file."""

    def find(self, module: str, name: str, budget: Budget) -> Any:
        """Return a constant or a `Named`; raise `Refused` for a name that such files do not need."""

    def build(self, target: Any, state: Any, budget: Budget) -> None:
        """Set the state of an object."""

    def persistent(self, number: Any, budget: Budget) -> Any:
        """Return the object outside the pickle that a persistent id refers to."""


class Machine:
    """Interprets one pickle that begins at `start`; afterwards, `position` is the end of the pickle."""

    def __init__(self, buffer: Buffer, vocabulary: Vocabulary, budget: Budget, start: int = 0) -> None:
        self.position, self._buffer, self._end = start, buffer, len(buffer)
        self._vocabulary, self._budget = vocabulary, budget
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value of the pickle."""
        while True:
            code = self._take(1)
            if code == b".":
                value = self._pop()
                check_depth(value)
                return value
            instruction = _INSTRUCTIONS.get(code)
            if instruction is None:
                raise Damaged(f"{code!r} is not a pickle instruction")
            instruction(self)

    # Bytes

    def _take(self, count: int) -> bytes:
        if count < 0 or count > self._end - self.position:
            raise Damaged("it ends in the middle of a value, or claims a false length")
        first, self.position = self.position, self.position + count
        return self._buffer[first : self.position]

    def _line(self) -> bytes:
        end = self._buffer.find(b"\n", self.position, self._end)
        if end < 0:
            raise Damaged("it ends in the middle of a line")
        self._budget.charge(end - self.position)
        return self._take(end - self.position + 1)[:-1]

    def _number(self, kind: str) -> int:
        (number,) = struct.unpack(kind, self._take(struct.calcsize(kind)))
        return int(number)

    def _long(self, raw: bytes) -> int:
        if len(raw) > _LONGEST_NUMBER:
            raise Refused(f"it contains an integer of {len(raw):,} bytes; the limit is {_LONGEST_NUMBER:,}")
        return int.from_bytes(raw, "little", signed=True)

    def _text(self, length: int, encoding: str) -> str:
        if length > self._end - self.position:
            raise Damaged("it claims a string longer than the file")
        self._budget.charge(5 * length)  # the bytes, and up to four per character
        return self._take(length).decode(encoding, "surrogatepass" if encoding == "utf-8" else "strict")

    def _raw(self, length: int) -> bytes:
        self._budget.charge(min(length, self._end - self.position))
        return self._take(length)

    # Stack

    def _push(self, value: Any, size: int = _SCALAR) -> None:
        self._budget.charge(size + _SLOT)
        self._stack.append(value)

    def _pop(self) -> Any:
        if not self._stack:
            raise Damaged("it takes a value from an empty stack")
        return self._stack.pop()

    def _mark(self) -> None:
        self._budget.charge(_CONTAINER)
        self._marks.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        if not self._marks:
            raise Damaged("it lacks a mark")
        items, self._stack = self._stack, self._marks.pop()
        return items

    def _top(self) -> Any:
        if not self._stack:
            raise Damaged("it takes a value from an empty stack")
        return self._stack[-1]

    def _tuple(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(items)), _CONTAINER)

    def _take_marked(self, kind: Callable[[list[Any]], Any]) -> None:
        items = self._since_mark()
        self._push(kind(items), _CONTAINER + 8 * len(items))

    def _remember(self, index: int) -> None:
        self._budget.charge(_ENTRY)
        self._memo[index] = self._top()

    def _recall(self, index: int) -> None:
        if index not in self._memo:
            raise Damaged(f"it recalls value {index}, which it never stored")
        self._push(self._memo[index], 0)

    # Containers

    def _extend(self, items: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Dropped):
            return
        if type(target) is not list:
            raise Refused(f"it appends to a {type(target).__name__}")
        self._budget.charge(_SLOT * len(items))
        target.extend(items)

    def _update(self, items: Sequence[Any]) -> None:
        target = self._top()
        if len(items) % 2:
            raise Damaged("it has a key without a value")
        if isinstance(target, Dropped):
            return
        if not isinstance(target, dict):
            raise Refused(f"it sets items of a {type(target).__name__}")
        self._budget.charge(_ENTRY * (len(items) // 2))
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[check_key(key)] = value

    def _dict(self) -> None:
        items = self._since_mark()
        self._push({}, _CONTAINER)
        self._update(items)

    def _add(self) -> None:
        items = self._since_mark()
        target = self._top()
        if isinstance(target, Dropped):
            return
        if not isinstance(target, set):
            raise Refused(f"it adds to a {type(target).__name__}")
        self._budget.charge(_ENTRY * len(items))
        target.update(check_key(item) for item in items)

    def _frozenset(self) -> None:
        items = self._since_mark()
        self._push(frozenset(check_key(item) for item in items), _SET + _ENTRY * len(items))

    # Names

    def _find(self, module: object, name: object) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise Refused("it looks up a name that is not a string")
        return self._vocabulary.find(module, name, self._budget)

    def _global(self) -> None:
        self._push(self._find(self._line().decode("utf-8"), self._line().decode("utf-8")))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._push(self._find(module, name))

    def _call(self, function: Any, arguments: Any) -> None:
        if isinstance(function, Dropped):
            self._push(Dropped())
            return
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise Refused(f"it calls a {type(function).__name__}")
        self._budget.charge(_CONTAINER)
        self._push(function.call(*arguments))

    def _reduce(self) -> None:
        arguments, function = self._pop(), self._pop()
        self._call(function, arguments)

    def _new_with_keywords(self) -> None:
        keywords, arguments, function = self._pop(), self._pop(), self._pop()
        if keywords:
            function = Dropped() if isinstance(function, Dropped) else None
        self._call(function, arguments)

    def _instance(self) -> None:
        found = self._find(self._line().decode("utf-8"), self._line().decode("utf-8"))
        self._call(found, tuple(self._since_mark()))

    def _object(self) -> None:
        items = self._since_mark()
        if not items:
            raise Damaged("it creates an object without a class")
        self._call(items[0], tuple(items[1:]))

    def _build(self) -> None:
        state, target = self._pop(), self._top()
        if not isinstance(target, Dropped):
            self._vocabulary.build(target, state, self._budget)

    def _persistent(self) -> None:
        self._push(self._vocabulary.persistent(self._pop(), self._budget))

    # Numbers and strings of the oldest protocol

    def _int_line(self) -> None:
        line = self._line()
        self._push({b"00": False, b"01": True}.get(line) if line in (b"00", b"01") else _whole(line))

    def _string_line(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise Damaged("it has a string without quotes")
        raw, _ = codecs.escape_decode(line[1:-1])
        self._push(raw.decode("latin1"), _SCALAR + len(raw))

    def _unicode_line(self) -> None:
        line = self._line()
        self._budget.charge(4 * len(line))
        self._push(line.decode("raw-unicode-escape"))

    def _protocol(self) -> None:
        if self._number("B") > pickle.HIGHEST_PROTOCOL:
            raise Damaged("its protocol is unknown")

    def _refuse(self) -> None:
        raise Refused("it uses an extension, an out-of-band buffer or a persistent name")


def _whole(line: bytes) -> int:
    text = line.removesuffix(b"L")
    if len(text) > _LONGEST_NUMBER:
        raise Refused(f"it contains an integer of {len(text):,} digits; the limit is {_LONGEST_NUMBER:,}")
    return int(text)


_Instruction = Callable[[Machine], Any]
_INSTRUCTIONS: dict[bytes, _Instruction] = {
    b"\x80": Machine._protocol,
    b"\x95": lambda m: m._take(8),  # the length of a frame: nothing depends on it
    b"(": Machine._mark,
    b"0": lambda m: m._pop() if m._stack else m._since_mark(),
    b"1": Machine._since_mark,
    b"2": lambda m: m._push(m._top(), 0),
    b"N": lambda m: m._push(None, 0),
    b"\x88": lambda m: m._push(True, 0),
    b"\x89": lambda m: m._push(False, 0),
    b"I": Machine._int_line,
    b"J": lambda m: m._push(m._number("<i")),
    b"K": lambda m: m._push(m._number("<B"), 0),
    b"M": lambda m: m._push(m._number("<H")),
    b"L": lambda m: m._push(_whole(m._line())),
    b"\x8a": lambda m: m._push(m._long(m._take(m._number("B")))),
    b"\x8b": lambda m: m._push(m._long(m._raw(m._number("<i")))),
    b"F": lambda m: m._push(float(m._line()[:_LONGEST_NUMBER])),
    b"G": lambda m: m._push(struct.unpack(">d", m._take(8))[0]),
    b"S": Machine._string_line,
    b"T": lambda m: m._push(m._text(m._number("<i"), "latin1")),
    b"U": lambda m: m._push(m._text(m._number("B"), "latin1")),
    b"V": Machine._unicode_line,
    b"X": lambda m: m._push(m._text(m._number("<I"), "utf-8")),
    b"\x8c": lambda m: m._push(m._text(m._number("B"), "utf-8")),
    b"\x8d": lambda m: m._push(m._text(m._number("<Q"), "utf-8")),
    b"B": lambda m: m._push(m._raw(m._number("<I"))),
    b"C": lambda m: m._push(m._raw(m._number("B"))),
    b"\x8e": lambda m: m._push(m._raw(m._number("<Q"))),
    b"\x96": lambda m: m._push(bytearray(m._raw(m._number("<Q")))),
    b"]": lambda m: m._push([], _CONTAINER),
    b"}": lambda m: m._push({}, _CONTAINER),
    b")": lambda m: m._push((), 0),
    b"\x8f": lambda m: m._push(set(), _SET),
    b"l": lambda m: m._take_marked(list),
    b"t": lambda m: m._take_marked(tuple),
    b"\x85": lambda m: m._tuple(1),
    b"\x86": lambda m: m._tuple(2),
    b"\x87": lambda m: m._tuple(3),
    b"d": Machine._dict,
    b"\x91": Machine._frozenset,
    b"a": lambda m: m._extend([m._pop()]),
    b"e": lambda m: m._extend(m._since_mark()),
    b"s": lambda m: m._update([m._pop(), m._pop()][::-1]),
    b"u": lambda m: m._update(m._since_mark()),
    b"\x90": Machine._add,
    b"p": lambda m: m._remember(_whole(m._line())),
    b"q": lambda m: m._remember(m._number("B")),
    b"r": lambda m: m._remember(m._number("<I")),
    b"\x94": lambda m: m._remember(len(m._memo)),
    b"g": lambda m: m._recall(_whole(m._line())),
    b"h": lambda m: m._recall(m._number("B")),
    b"j": lambda m: m._recall(m._number("<I")),
    b"c": Machine._global,
    b"\x93": Machine._stack_global,
    b"R": Machine._reduce,
    b"\x81": Machine._reduce,
    b"\x92": Machine._new_with_keywords,
    b"i": Machine._instance,
    b"o": Machine._object,
    b"b": Machine._build,
    b"Q": Machine._persistent,
    b"P": Machine._refuse,
    b"\x82": Machine._refuse,
    b"\x83": Machine._refuse,
    b"\x84": Machine._refuse,
    b"\x97": Machine._refuse,
    b"\x98": Machine._refuse,
}
