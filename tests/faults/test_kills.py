"""Killed before any call that changes a file, every command ends, when it is run again, in the same bytes.

By default a few kills per command, spread over its calls; `CARP_KILLS=all` kills at every call.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from carp.files.atomic import is_unfinished
from tests.encoders.foreign.layouts import narrow, released
from tests.faults.conftest import Child, Server
from tests.faults.kill_at_call import why_not
from tests.helpers import tiny_images, write_images

KILLS = os.environ.get("CARP_KILLS", "2")
NEVER = 10**9
REASON = why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
TALLY = {"kills": 0, "calls": 0}


@dataclass(frozen=True)
class Ready:
    """What the commands work on; nothing in it is changed."""

    run: Path
    images: Path
    store: Path
    index: Path
    results: Path
    flat: Path
    recipe: Path
    weights: Path


@pytest.fixture(scope="module")
def ready(carp: Server, short_run: Path, images: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Ready:
    flat, home = images, tmp_path_factory.mktemp("ready")
    images = write_images(home / "images", tiny_images(24), classes=2)
    for i in (3, 9):  # copies, for `duplicates`
        shutil.copy(images / "class-0" / "000.png", images / "class-1" / f"copy-{i}.png")
    next(iter(sorted(images.glob("*/*.png")))).write_bytes(b"no image")
    run = Path(shutil.copytree(short_run, home / "run"))
    for words in (
        ("embed", run, "--data", images, "--out", home / "store"),
        ("index", home / "store", "--out", home / "index"),
        ("eval", "knn", run, "--data", images, "k=3"),
    ):
        code, output = carp.run(*words)
        assert code == 0, output
    torch.save(released("simclr", narrow().state_dict())[0], home / "simclr.pth")
    results = home / "results"
    (run / "results").rename(results)
    shutil.rmtree(run / "features")
    return Ready(run, images, home / "store", home / "index", results, flat, recipe, home / "simclr.pth")


@pytest.fixture(scope="module", autouse=True)
def tally() -> Iterator[None]:
    yield
    print(f"\nkilled {TALLY['kills']} times; the commands make {TALLY['calls']} calls that change files")


def copied(ready: Ready, out: Path) -> Path:
    return out / "run" if (out / "run").exists() else Path(shutil.copytree(ready.run, out / "run"))


Words = Callable[[Ready, Path], tuple[object, ...]]
# Every command that writes files; `out` is a folder of its own.
COMMANDS: dict[str, Words] = {
    "embed": lambda r, out: ("embed", r.run, "--data", r.images, "--out", out / "store", "--batch-size", 8),
    "embed csv": lambda r, out: ("embed", r.run, "--data", r.images, "--out", out / "store", "--format", "csv"),
    "embed parquet": lambda r, out: ("embed", r.run, "--data", r.images, "--out", out / "store", "--format", "parquet"),
    "index": lambda r, out: ("index", r.store, "--out", out / "index"),
    "eval": lambda r, out: ("eval", "knn", copied(r, out), "--data", r.images, "k=3"),
    "export safetensors": lambda r, out: ("export", r.run, "--format", "safetensors", "--out", out / "a.safetensors"),
    "export timm": lambda r, out: ("export", f"simclr:{r.weights}", "--format", "timm", "--out", out / "timm"),
    "export onnx": lambda r, out: ("export", r.run, "--format", "onnx", "--out", out / "encoder.onnx"),
    "table markdown": lambda r, out: ("table", r.results, "--out", out / "table.md"),
    "table picture": lambda r, out: ("table", r.results, "--out", out / "table.png"),
    "search sheet": lambda r, out: ("search", r.index, r.images / "class-1", "--sheet", out / "sheet.html"),
    "views": lambda r, out: ("views", r.flat, "--out", out / "views.png", "--images", 1, "--draws", 1),
    "duplicates": lambda r, out: ("duplicates", r.images, "--model", r.run, "--out", out / "found"),
    "attack": lambda r, out: ("data", "attack", r.images, "--out", out / "copies", "--limit", 2, "--attacks", "jpeg"),
    "plots": lambda r, out: ("train", r.flat, "--recipe", r.recipe, "--out", copied(r, out), "epochs=5"),
}
REPLACING = ("index", "export timm")  # what an earlier call wrote


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder with a digest; the date of a result does not count, nor does the lock of a run."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(_undated(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def _undated(path: Path) -> bytes:
    if path.parent.name != "results" or is_unfinished(path):
        return path.read_bytes()
    return json.dumps(json.loads(path.read_text()) | {"created": ""}).encode()


class Killer:
    """Runs a command, kills it at a call, runs it again and compares."""

    def __init__(self, carp: Server, words: Words, ready: Ready, home: Path, *, twice: bool = False) -> None:
        self.carp, self.words, self.ready, self.home, self.twice = carp, words, ready, home, twice

    def start(self, out: Path, kill_at: int) -> Child:
        out.mkdir(exist_ok=True)
        words = self.words(self.ready, out)
        log = str(out.with_suffix(".calls"))
        return self.carp.start(*words, under=str(out), kill_at=kill_at, calls=log, note_seconds=0)

    def complete(self, out: Path) -> dict[str, str]:
        child = self.start(out, NEVER)
        code = child.wait()
        assert code == 0, child.output
        return contents(out)

    def calls(self, out: Path) -> list[str]:
        return out.with_suffix(".calls").read_text().splitlines()

    def run(self) -> None:
        out = self.home / "out"  # one name, as stores say where their encoder was
        expected = self.complete(out)
        if self.twice:
            assert self.complete(out) == expected
        calls = self.calls(out)
        assert len(calls) >= 4, f"the calls of the command were not seen: {calls}"
        for number in chosen(calls):
            shutil.rmtree(out)
            if self.twice:
                self.complete(out)
            child = self.start(out, number)
            assert child.wait() == -signal.SIGKILL, f"not killed at call {number}:\n{child.output}"
            died, left = self.calls(out)[-1], sorted(contents(out))
            assert self.complete(out) == expected, f"killed before call {number}, {died}, which left {left}"
            TALLY["kills"] += 1
        TALLY["calls"] += len(calls)


def chosen(calls: list[str]) -> list[int]:
    """Numbers of calls, counted from 1: all, or a few: after the last rename, before the first, others spread."""
    if KILLS == "all":
        return list(range(1, len(calls) + 1))
    renames = [i for i, call in enumerate(calls, 1) if call.startswith("rename")]
    wanted = [renames[-1] + 1, renames[0], *(1 + i * len(calls) // int(KILLS) for i in range(int(KILLS)))]
    return list(dict.fromkeys(number for number in wanted if number <= len(calls)))[: int(KILLS)]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_kill_at_any_call_changes_nothing(carp: Server, ready: Ready, tmp_path: Path, name: str) -> None:
    Killer(carp, COMMANDS[name], ready, tmp_path).run()


@pytest.mark.parametrize("name", REPLACING)
def test_a_kill_while_something_is_replaced_changes_nothing(
    carp: Server, ready: Ready, tmp_path: Path, name: str
) -> None:
    Killer(carp, COMMANDS[name], ready, tmp_path, twice=True).run()


class TwoProcesses(Killer):
    """The first of two processes is killed, while it extracts, joins the parts or finishes; the other ends with it."""

    def start(self, out: Path, kill_at: int) -> Child:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        out.mkdir(exist_ok=True)
        words, shared = self.words(self.ready, out), {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        world = shared | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        ranks = [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in (0, 1)]
        other = self.carp.start(*words, environment=ranks[1], note_seconds=0)
        log = str(out.with_suffix(".calls"))
        first = self.carp.start(
            *words, environment=ranks[0], note_seconds=0, under=str(out), kill_at=kill_at, calls=log
        )
        code = first.wait()
        if code < 0:
            os.kill(other.pid, signal.SIGKILL)
        other.wait()
        return Ended(first, code)


class Ended(Child):
    """A process that was waited for."""

    def __init__(self, child: Child, code: int) -> None:
        self._output, self._code = child._output, code

    def wait(self, *, seconds: float = 0) -> int:
        return self._code


def test_a_kill_while_two_processes_extract_and_join_changes_nothing(
    carp: Server, ready: Ready, tmp_path: Path
) -> None:
    TwoProcesses(carp, COMMANDS["embed"], ready, tmp_path).run()
