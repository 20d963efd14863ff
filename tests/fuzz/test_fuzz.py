"""The command line survives a sample of what `make fuzz` tries; and the fuzzer would notice if it did not."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import hostile
from tests.fuzz.campaign import random_for, shares
from tests.fuzz.case import BUDGET, IN, OUT, Case
from tests.fuzz.interpreter import Interpreter
from tests.fuzz.mutate import mutate, mutate_text
from tests.fuzz.oracle import faults
from tests.fuzz.targets import TARGETS
from tests.fuzz.targets.images import seed_images
from tests.fuzz.targets.stores import unchanged_or_reported
from tests.fuzz.watch import CANARY

INPUTS = 60  # `make fuzz` tries 10,000


def test_every_input_is_survived(tmp_path: Path) -> None:
    """In a process of its own, since one with threads cannot be forked safely."""
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", str(INPUTS), "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(
        [*command, "--failures", str(tmp_path / "failures")], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures.keys() == TARGETS.keys()
    assert sum(target["tried"] for target in figures.values()) == INPUTS
    accepted = sum(target["codes"].get("0", 0) for target in figures.values())
    assert INPUTS / 20 < accepted < INPUTS / 1.2, "too little or too much of the damage is noticed"


# Each does one thing that no command may do.


def _raise() -> None:
    raise ValueError("a bug")


def _sleep() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.2)  # sooner than the fuzzer's own, which then is what ends it
    signal.pause()


def _use_memory() -> None:
    held = bytearray(BUDGET + 2**27)
    held[:: 2**12] = b"\1" * len(held[:: 2**12])  # a page is there once it is written to


def _ask_for_memory() -> None:
    bytearray(2**36)


def _change_input() -> None:
    descriptor = os.open(f"{IN}/file", os.O_RDONLY)  # without the audit hook's knowledge
    os.close(descriptor)
    Path(IN, "file").write_text("changed")


def _say(text: str) -> Callable[[], None]:
    return lambda: print(text, file=sys.stderr)


MISDEEDS: dict[str, tuple[Callable[[], object], str]] = {
    "traceback": (_raise, "traceback: ValueError: a bug"),
    "out of memory": (_ask_for_memory, "traceback: MemoryError"),
    "hang": (_sleep, "hang"),
    "crash": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "killed by SIGSEGV"),
    "exit code": (lambda: sys.exit(77), "exit code 77"),
    "silent failure": (lambda: sys.exit(2), "0 error lines"),
    "two errors": (lambda: (_say("carp: error: a\ncarp: error: b")(), sys.exit(2)), "2 error lines"),
    "an error and success": (_say("carp: error: a"), "an error line and an exit code of success"),
    "a library's warning": (lambda: os.write(2, b"TIFFReadDirectory: Warning\n"), "not CARP's: 'TIFFReadDirectory"),
    "control characters": (lambda: print("\x1b[31mred"), "control characters on stdout: ['\\x1b']"),
    "memory": (_use_memory, "memory: 1,"),
    "a program": (lambda: os.system("true"), "started a program: os.system"),
    "a socket": (lambda: socket.getaddrinfo("localhost", 9), "used the network: socket.getaddrinfo"),
    "code": (lambda: exec(f"'{CANARY}'"), "ran code of the input"),
    "a canary": (lambda: os.mknod(CANARY), "code of the input was run"),
    "a write elsewhere": (lambda: Path("../elsewhere").write_text(""), "wrote '../elsewhere'"),
    "a removal elsewhere": (lambda: Path("../nothing").unlink(), "os.remove of '../nothing'"),
    "a changed input": (_change_input, f"changed its input: '{IN}/file'"),
    "a file beside its output": (lambda: os.mknod("beside"), "wrote beside its output: 'beside'"),
}


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Runs misdeeds in the place of `carp`."""
    return Interpreter(tmp_path, command=lambda words: MISDEEDS[words[0]][0]() and None)


def found(interpreter: Interpreter, case: Case) -> list[str]:
    folder = interpreter.start(case)
    ((_, outcome, _),) = list(interpreter.finish())
    return faults(case, outcome, folder)


@pytest.mark.parametrize("name", MISDEEDS)
def test_a_misdeed_is_noticed(interpreter: Interpreter, name: str) -> None:
    wrong = found(interpreter, Case((name,), {f"{IN}/file": b"input"}))
    assert any(MISDEEDS[name][1] in fault for fault in wrong), wrong


def test_good_behaviour_is_no_fault(tmp_path: Path) -> None:
    def behave(_words: tuple[str, ...]) -> None:
        Path(OUT, "made").write_text(Path(IN, "file").read_text())
        print("warning: the input is damaged", file=sys.stderr)
        print("carp: error: in/file cannot be used.", file=sys.stderr)
        sys.exit(2)

    assert found(Interpreter(tmp_path, command=behave), Case(("x",), {f"{IN}/file": b"input"})) == []


@pytest.mark.parametrize(("says", "prints", "held"), [("", 1, True), ("", 2, False), ("warning: damaged", 2, True)])
def test_another_result_without_a_report_is_a_fault(tmp_path: Path, says: str, prints: int, held: bool) -> None:
    def behave(_words: tuple[str, ...]) -> None:
        print(prints)
        print(says, file=sys.stderr, end="\n" if says else "")

    check = unchanged_or_reported("1\n", lambda outcome, _folder: outcome.stdout)
    assert (found(Interpreter(tmp_path, command=behave), Case(("x",), check=check)) == []) == held


def test_hostile_pickles_do_run_where_nothing_stops_them(tmp_path: Path) -> None:
    """Or the inputs that carry them would prove nothing."""

    def unpickle(words: tuple[str, ...]) -> None:
        pickle.loads(bytes.fromhex(words[0]))  # noqa: TID251 - in a forked child, which is what is tested

    interpreter = Interpreter(tmp_path, command=unpickle)
    programs = [program for program in hostile.pickles() if b"system" in program or b"exec" in program]
    assert len(programs) >= 20
    noticed = [found(interpreter, Case((program.hex(),))) for program in programs]
    words = ("unpickled", "started a program", "ran code")
    assert sum(any(word in fault for fault in wrong for word in words) for wrong in noticed) >= 0.8 * len(programs)
    assert any(path.name == CANARY for path in tmp_path.rglob(CANARY))


def test_inputs_are_those_of_their_seed() -> None:
    data = [content for _, content in seed_images()]
    made = [mutate(random_for(0, "images", number), data[0], data) for number in range(50)]
    assert made == [mutate(random_for(0, "images", number), data[0], data) for number in range(50)]
    assert len(set(made)) > 45
    assert made[0] != mutate(random_for(1, "images", 0), data[0], data)
    texts = [mutate_text(random_for(0, "yaml", number), "a: 1\nb: [2, 3]\n") for number in range(50)]
    assert len(set(texts)) > 45


@pytest.mark.parametrize("count", [50, 300, 10_000])
def test_every_target_has_its_share(count: int) -> None:
    found = shares(count, list(TARGETS))
    assert sum(found.values()) == count
    assert min(found.values()) >= 1
