"""Damage: valid bytes or text in, something else out; the same generator gives the same damage."""

import struct
from collections.abc import Callable, Sequence
from random import Random

_NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**64 - 1,
)
_ESCAPES = ("\x1b[2J", "\x1b]0;title\x07", "\x00", "\r", "\x9b31m", "\u202e", "\ud800", "\U0010ffff", "\x7f", "\u2028")
HUGE_NUMBERS = (
    "-1", "0", "1e308", "-1e308", "1e400", "1e-320", "NaN", "Infinity", "-Infinity", "2147483648",
    "9223372036854775808", "18446744073709551616", "9" * 30, "9" * 400, "9" * 5000, "0x" + "f" * 40, "1" + "0" * 100,
    "true", "null", "[]", "{}", '""', "1.5", "-0.0", "00012", "1_000", "١٢", "3j",
)  # fmt: skip


def mutate(rng: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """One to four kinds of damage, mostly one: a reader should get far before it meets it."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        change = rng.choices(_CHANGES, _WEIGHTS)[0]
        data = change(rng, data, others)
    return data


def mutate_text(rng: Random, text: str) -> str:
    """Damage that leaves most of a text readable: numbers, words, brackets, characters that terminals act on."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = rng.choice(_TEXT_CHANGES)(rng, text)
    return text


def flip_bits(rng: Random, data: bytes, _others: Sequence[bytes] = ()) -> bytes:
    """A few bits."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _flip_early(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    """A bit of the head, where lengths and kinds are."""
    return flip_bits(rng, data[:64]) + data[64:]


def truncate(rng: Random, data: bytes, _others: Sequence[bytes] = ()) -> bytes:
    """Keep the beginning."""
    return data[: rng.randrange(len(data) + 1)]


def _place_number(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    """A number of two, four or eight bytes that a length or an offset should not be."""
    size, code = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    packed = struct.pack(rng.choice("<>") + code, rng.choice(_NUMBERS) % 2 ** (8 * size))
    place = rng.randrange(max(1, min(len(data), rng.choice((64, 512, len(data) or 1)))))
    return data[:place] + packed + data[place + size :]


def _overwrite(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, stop = _part(rng, data)
    filled = rng.choice((bytes(stop - start), b"\xff" * (stop - start), rng.randbytes(stop - start)))
    return data[:start] + filled + data[stop:]


def _delete(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, stop = _part(rng, data)
    return data[:start] + data[stop:]


def _duplicate(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, stop = _part(rng, data)
    return data[:start] + data[start:stop] * rng.choice((2, 2, 3, 17)) + data[stop:]


def _insert(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 4, 64, 1024))) + data[place:]


def _splice(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The beginning of this, the end of another."""
    other = rng.choice(others) if others else data
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _append(rng: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    return data + rng.choice((b"\0" * 512, rng.randbytes(100), data, rng.choice(others) if others else b"\xff"))


def _digits(rng: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    """Another number in the place of one that is written in digits."""
    places = [i for i in range(len(data)) if data[i : i + 1].isdigit()] if len(data) < 10_000 else []
    if not places:
        return flip_bits(rng, data)
    place = rng.choice(places)
    return data[:place] + rng.choice(HUGE_NUMBERS[:20]).encode() + data[place + 1 :]


def _part(rng: Random, data: bytes) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.choice((1, 2, 4, 16, 256, 4096)))


Change = Callable[[Random, bytes, Sequence[bytes]], bytes]
_WEIGHTED: tuple[tuple[Change, int], ...] = (
    (flip_bits, 5), (_flip_early, 3), (truncate, 2), (_place_number, 5), (_overwrite, 2), (_delete, 2), (_duplicate, 2),
    (_insert, 2), (_splice, 2), (_append, 1), (_digits, 1),
)  # fmt: skip
_CHANGES, _WEIGHTS = [change for change, _ in _WEIGHTED], [weight for _, weight in _WEIGHTED]


def _number_in_text(rng: Random, text: str) -> str:
    places = [i for i, c in enumerate(text) if c.isdigit() and not text[i - 1 : i].isdigit()]
    if not places:
        return text + rng.choice(HUGE_NUMBERS)
    start = stop = rng.choice(places)
    while stop < len(text) and (text[stop].isdigit() or text[stop] in ".e"):
        stop += 1
    return text[:start] + rng.choice(HUGE_NUMBERS) + text[stop:]


def _character(rng: Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    character = rng.choice((*_ESCAPES, *"{}[]()<>'\"\\,:;#&*!|%@`~\t\n- "))
    return text[:place] + character * rng.choice((1, 1, 1, 50)) + text[place + rng.choice((0, 1)) :]


def _cut_text(rng: Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] + text[start + rng.choice((1, 5, 50, len(text))) :]


def _nest(rng: Random, text: str) -> str:
    """Brackets in brackets."""
    depth = rng.choice((3, 200, 2_000, 100_000))
    left, right = rng.choice((("[", "]"), ('{"a":', "}"), ("(", ")"), ("- ", ""), ("{", "}")))
    place = rng.randrange(len(text) + 1)
    return text[:place] + left * depth + right * rng.choice((0, depth)) + text[place:]


def _line_twice(rng: Random, text: str) -> str:
    lines = text.split("\n")
    place = rng.randrange(len(lines))
    return "\n".join([*lines[:place], *[lines[place]] * rng.choice((2, 2, 500)), *lines[place + 1 :]])


def _swap_words(rng: Random, text: str) -> str:
    words = text.split(" ")
    a, b = rng.randrange(len(words)), rng.randrange(len(words))
    words[a], words[b] = words[b], words[a]
    return " ".join(words)


def _long(rng: Random, text: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + rng.choice("ax9 ") * rng.choice((300, 5_000, 200_000)) + text[place:]


_TEXT_CHANGES: tuple[Callable[[Random, str], str], ...] = (
    _number_in_text, _number_in_text, _number_in_text, _character, _character, _character, _cut_text, _nest,
    _line_twice, _swap_words, _long,
)  # fmt: skip


def to_bytes(text: str) -> bytes:
    """UTF-8, also of halves of surrogate pairs."""
    return text.encode("utf-8", "surrogatepass")
