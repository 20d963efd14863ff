"""A pickle from outside can do nothing: plain values are read, everything else is refused before it runs."""

import codecs
import operator
import os
import pickle
import pickletools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.errors import DataError
from carp.restricted import read_plain_pickle

PLAIN = {"names": ["a", "ß"], "numbers": [1, -2, 10**30, 1.5, True, None], "nested": {"x": [[1], (2, 3)], "y": b"z"}}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values(protocol: int) -> None:
    assert read_plain_pickle(pickle.dumps(PLAIN, protocol), "it") == PLAIN


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(7),
        np.array([], dtype=np.int64),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["all_souls", "x"]),
        np.array([True, False]),
        np.arange(5)[::2],
    ],
)
def test_arrays_become_lists(array: Any, protocol: int) -> None:
    read = read_plain_pickle(pickle.dumps({"in": [array], "number": array.dtype.type(1)}, protocol), "it")
    assert read == {"in": [array.tolist()], "number": array.dtype.type(1).item()}


class Reduced:
    """Whatever `reduce` gives is what unpickling would call."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced

    def __call__(self) -> None:
        """So that it may stand for a function."""


def bomb_in_numpy_object(path: str) -> bytes:
    return pickle.dumps(np.array([Reduced(os.system, (f"touch {path}",))], dtype=object))


def by_instruction(text: bytes) -> Callable[[str], bytes]:
    return lambda path: text.replace(b"PATH", path.encode())


ATTACKS: dict[str, Callable[[str], bytes]] = {
    "os.system": lambda path: pickle.dumps(Reduced(os.system, (f"touch {path}",))),
    "os.system, protocol 0": lambda path: pickle.dumps(Reduced(os.system, (f"touch {path}",)), 0),
    "subprocess": lambda path: pickle.dumps(Reduced(subprocess.check_call, (["touch", path],))),
    "eval": lambda path: pickle.dumps(Reduced(eval, (f"open({path!r}, 'w')",))),
    "exec": lambda path: pickle.dumps(Reduced(exec, (f"open({path!r}, 'w').close()",))),
    "open": lambda path: pickle.dumps(Reduced(open, (path, "w"))),
    "getattr chain": lambda path: pickle.dumps(
        Reduced(Reduced(getattr, (Reduced(__import__, ("os",)), "system")), (f"touch {path}",)),
    ),
    "attrgetter": lambda path: pickle.dumps(Reduced(operator.attrgetter("system"), (Reduced(__import__, ("os",)),))),
    "import by name": lambda path: pickle.dumps(Reduced(__import__, (path,))),
    "codecs.decode": lambda path: pickle.dumps(Reduced(codecs.decode, (b"gbhpu", "rot13"))),
    "codecs.encode with another encoding": lambda path: pickle.dumps(Reduced(codecs.encode, ("gbhpu", "rot13"))),
    "numpy's own loader": lambda path: pickle.dumps(Reduced(np.load, (path, None, True))),
    "numpy's fromfile": lambda path: pickle.dumps(Reduced(np.fromfile, (path,))),
    "a nested dictionary": lambda path: pickle.dumps({"gnd": [{"easy": [Reduced(os.system, (f"touch {path}",))]}]}),
    "an array of objects": bomb_in_numpy_object,
    "a pickle inside a state": lambda path: pickle.dumps(
        Reduced(dict, (), None, None, iter([(1, Reduced(os.system, (f"touch {path}",)))])),
    ),
    "GLOBAL": by_instruction(b"cos\nsystem\n(S'touch PATH'\ntR."),
    "INST": by_instruction(b"(S'touch PATH'\nios\nsystem\n."),
    "OBJ": by_instruction(b"(cos\nsystem\nS'touch PATH'\no."),
    "STACK_GLOBAL from texts": by_instruction(b"\x80\x04\x8c\x02os\x8c\x06system\x93(\x8c\x01xtR."),
    "a dotted name": by_instruction(b"\x80\x04\x8c\x05numpy\x8c\x14ndarray.__subclasses__\x93)R."),
    "EXT1": by_instruction(b"\x80\x02\x82\x01."),
    "PERSID": by_instruction(b"PPATH\n."),
    "BUILD of a class": by_instruction(b"cnumpy\nndarray\n}S'x'\nI1\nsb."),
    "a class instead of a value": by_instruction(b"cnumpy\nndarray\n."),
    "an array that was never filled": by_instruction(b"cnumpy\ndtype\n(S'i8'\ntR."),
    "an array of more bytes than there are": by_instruction(
        b"cnumpy.core.multiarray\n_reconstruct\n(tR(I1\n(L99999999999L\ntcnumpy\ndtype\n(S'i8'\ntRI00\nS'x'\ntb."
    ),
    "bytes of any length": by_instruction(b"c__builtin__\nbytes\n(I99999999999\ntR."),
    "a structured type": by_instruction(b"cnumpy\ndtype\n(S'i8,O'\ntR."),
}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that were called after all."""
    called = list[str]()
    for module, name in [(os, "system"), (subprocess, "check_call"), (np, "load"), (np, "fromfile")]:
        monkeypatch.setattr(module, name, lambda *_, name=name: called.append(name))
    return called


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_runs(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The file that every attack wants to make is not there, nor was anything called."""
    target = tmp_path / "owned"
    raw = ATTACKS[name](str(target))
    called: list[str] = request.getfixturevalue("watched")  # after the pickle is made: it names the real functions
    with pytest.raises(DataError, match=r"is refused|is not a complete pickle") as refused:
        read_plain_pickle(raw, "ground_truth.pkl")
    assert "\n" not in str(refused.value)
    assert not called
    assert not list(tmp_path.iterdir())


def test_the_attacks_are_real(tmp_path: Path) -> None:
    """Unpickled, the first of them does run."""
    target = tmp_path / "owned"
    pickle.loads(ATTACKS["os.system"](str(target)))  # noqa: TID251 - made here
    assert target.exists()


def test_a_refusal_names_what_was_asked_for() -> None:
    raw = pickle.dumps(Reduced(os.system, ("true",)), 2)
    with pytest.raises(DataError, match=rf"^it is refused: it asks for {os.name}.system\. Give a ground truth"):
        read_plain_pickle(raw, "it")


def test_every_prefix_of_a_pickle_is_refused() -> None:
    raw = pickletools.optimize(pickle.dumps({"x": [1, np.arange(3)]}, 4))
    for length in range(len(raw)):
        with pytest.raises(DataError, match="is not a complete pickle"):
            read_plain_pickle(raw[:length], "it")


@pytest.mark.parametrize("raw", [b"", b"text", b"\x89PNG\r\n", b"{}", b"\x80\x09."])
def test_what_is_no_pickle(raw: bytes) -> None:
    with pytest.raises(DataError, match=r"is not a complete pickle|is refused"):
        read_plain_pickle(raw, "it")


def test_random_bytes_run_nothing_and_are_told_in_a_line() -> None:
    draw = np.random.default_rng(0)
    whole = pickle.dumps({"x": [np.arange(3), "text"]}, 4)
    for _ in range(2000):
        raw = bytearray(whole)
        for place in draw.integers(0, len(raw), 3):
            raw[place] = draw.integers(256)
        try:
            read_plain_pickle(bytes(raw), "it")
        except DataError as error:
            assert "\n" not in str(error)


def nested(kind: bytes, depth: int) -> bytes:
    opening, closing = {b"list": (b"]", b"a"), b"tuple": (b")", b"\x85"), b"dict": (b"}K\x01", b"s")}[kind]
    return (
        b"\x80\x02" + (opening * depth + b"N" + closing * depth if kind != b"tuple" else b"N" + closing * depth) + b"."
    )


@pytest.mark.parametrize("kind", [b"list", b"tuple", b"dict"])
def test_depth(kind: bytes) -> None:
    read_plain_pickle(nested(kind, 90), "it")
    for depth in (101, 30_000):
        with pytest.raises(DataError, match="more than 100 levels deep"):
            read_plain_pickle(nested(kind, depth), "it")


def test_depth_that_is_made_from_outside_in() -> None:
    """Every list is put into the one before while it is still empty."""
    raw = b"\x80\x02]q\x00" + b"]q\x01ah\x01q\x00" * 5000 + b"."
    inside_out = b"\x80\x02]q\x00h\x00" + b"]q\x01ah\x01" * 5000 + b"1h\x00."
    for pickled in (raw, inside_out.replace(b"1h", b"h")):
        try:
            value = read_plain_pickle(pickled, "it")
        except DataError as error:
            assert "deep" in str(error)
        else:
            assert len(repr(value)) < 10_000


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x80\x02}(" + b"\x85" * 0 + b")" + b"\x85" * 50_000 + b"K\x01u.", "a tuple as a key"),
        (b"\x80\x02}(\x8a\x09" + b"\xff" * 8 + b"\x7fK\x01u.", "a int as a key"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f.", "is not a complete pickle"),
        (b"\x80\x04\x8b\x00\x00\x00\x80.", "is not a complete pickle"),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "is not a complete pickle"),
        (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "is not a complete pickle"),
        (b"\x80\x04X\xff\xff\xff\xffabc.", "is not a complete pickle"),
        (b"\x80\x05\x96" + b"\xff" * 8 + b".", "is not a complete pickle"),
        (b"L" + b"9" * 5_000 + b"L\n.", "an integer of 5,000 digits"),
        (b"\x80\x02\x8b\x00\x10\x00\x00" + b"1" * 4096 + b".", "an integer of 4,096 bytes"),
        (b"\x80\x02j\xff\xff\xff\x7f.", "recalls value"),
    ],
)
def test_false_lengths_and_keys(raw: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read_plain_pickle(raw, "it")
    assert "\n" not in str(caught.value)


def test_a_huge_memo_takes_no_memory() -> None:
    assert read_plain_pickle(b"\x80\x02Nr\xff\xff\xff\x7f.", "it") is None


def test_values_that_refer_to_themselves_or_to_one_another_a_million_times() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(DataError, match="one of its values contains itself"):
        read_plain_pickle(pickle.dumps(circle), "it")
    laughs: list[Any] = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    assert read_plain_pickle(pickle.dumps(laughs), "it")
