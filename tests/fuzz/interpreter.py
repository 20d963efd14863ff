"""Real commands, each in an interpreter of its own: forked from one that has imported everything already.

The child gets an address-space limit of twice the declared budget, a time limit, files for its streams and an audit
hook (`watch.py`). Nothing that it does can reach the parent, which only waits for its end.
"""

import ctypes
import faulthandler
import gc
import importlib
import io
import os
import pkgutil
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

import carp
from tests.fuzz import watch
from tests.fuzz.case import BUDGET, IN, OUT, Case, Outcome

SECONDS = 20
"""The longest that a command may take; a small input takes a tenth of a second, on a busy machine maybe one."""

_FILE_LIMIT = 2**28  # no output of a small input is larger
_LIBRARIES = ("typer.main", "faiss", "matplotlib.backends.backend_agg", "matplotlib.figure")
_COLLAPSE = 25  # MADV_COLLAPSE
_HUGE = 2**21


Command = Callable[[tuple[str, ...]], None]


@dataclass
class _Running:
    case: Case
    folder: Path
    snapshot: dict[str, tuple[int, ...]]


class Interpreter:
    """Starts commands and collects their outcomes; `jobs` of them at a time."""

    def __init__(self, work: Path, command: Command | None = None) -> None:
        """`command` takes the place of `carp`, for tests of the fuzzer itself."""
        self._work, self._command = work, command or run_carp
        self._running: dict[int, _Running] = {}
        self._count = 0
        if command is None:
            warm_up()
        self._address_space = _status("VmSize")
        self._resident = self._measure_idle()

    def __len__(self) -> int:
        return len(self._running)

    def run(self, case: Case, *, limited: bool = True) -> Outcome:
        """One command to its end; its folder is removed."""
        self.start(case, limited=limited)
        ((_, outcome, folder),) = list(self.finish())
        shutil.rmtree(folder)
        return outcome

    def start(self, case: Case, *, limited: bool = True, before: Callable[[], None] | None = None) -> Path:
        """Begin a command, in its process after `before`; returns its folder."""
        self._count += 1
        folder = self._work / f"case-{self._count}"
        case.write(folder)
        snapshot = _snapshot(folder / IN)
        sys.stdout.flush(), sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                if before is not None:
                    before()
                self._become_carp(case, folder, limited)
            finally:
                os._exit(70)
        self._running[pid] = _Running(case, folder, snapshot)
        return folder

    def finish(self) -> Iterator[tuple[Case, Outcome, Path]]:
        """Wait for the next command to end."""
        pid, status, usage = os.wait4(-1, 0)
        running = self._running.pop(pid)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # workers that it left behind
        folder = running.folder
        events = [*_text(folder / "events").splitlines(), *_touched(folder, running.snapshot)]
        yield (
            running.case,
            Outcome(
                code=os.waitstatus_to_exitcode(status),
                stdout=_text(folder / "stdout"),
                stderr=_text(folder / "stderr"),
                events=list(dict.fromkeys(events)),
                seconds=usage.ru_utime + usage.ru_stime,
                peak_bytes=max(0, usage.ru_maxrss * 1024 - self._resident),
            ),
            folder,
        )

    def _become_carp(self, case: Case, folder: Path, limited: bool) -> None:
        faulthandler.disable()  # pytest's would write about a crash to its own streams
        os.setsid()
        os.chdir(folder)
        for descriptor, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(name, flags, 0o600), descriptor)
        events = os.open("events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(
            io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        os.environ["TMPDIR"] = str(folder / OUT)
        if limited:
            self._limit()
            watch.install(folder / OUT, lambda line: os.write(events, f"{line}\n".encode(errors="replace")) and None)
        os._exit(_exit_code(self._command, case.words))

    def _limit(self) -> None:
        bound = self._address_space + 2 * BUDGET
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_LIMIT, _FILE_LIMIT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, wherever it is
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    @staticmethod
    def _measure_idle() -> int:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        return os.wait4(pid, 0)[2].ru_maxrss * 1024


def warm_up() -> None:
    """Import what commands import, and prepare this process for being forked often."""
    modules = [
        module.name for module in pkgutil.walk_packages(carp.__path__, "carp.") if module.name != "carp.__main__"
    ]
    for name in (*modules, *_LIBRARIES):
        importlib.import_module(name)
    Image.init()
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, "a forked child would lack the threads of this process"
    _use_huge_pages()
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page


def run_carp(words: tuple[str, ...]) -> None:
    """`carp words…`, by its real entry point."""
    from carp import cli

    sys.argv = ["carp", *words]
    cli.main()


def _exit_code(command: Command, words: tuple[str, ...]) -> int:
    """What Python would make of how a command ends."""
    try:
        command(words)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _use_huge_pages() -> None:
    """Copying the page tables is most of the cost of a fork; with huge pages there is half as much to copy."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) == 5 or fields[5] == "[heap]":
            start, stop = (int(x, 16) for x in fields[0].split("-"))
            start, stop = -(-start // _HUGE) * _HUGE, stop // _HUGE * _HUGE
            if start < stop:
                libc.madvise(start, stop - start, _COLLAPSE)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _text(path: Path) -> str:
    """A stream as it is, except for bytes that are no text, which become escapes."""
    return path.read_bytes().decode(errors="backslashreplace") if path.exists() else ""


def _snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    """What there is below a folder, with size and time of every file."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = f"{parent}/{name}"
            state = os.lstat(path)
            directory = name in folders
            found[path] = (state.st_mode, *(() if directory else (state.st_size, state.st_mtime_ns)))
    return found


def _touched(folder: Path, before: dict[str, tuple[int, ...]]) -> list[str]:
    """Files of the input that changed, and new ones beside it."""
    after = _snapshot(folder / IN)
    changed = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    beside = {entry.name for entry in os.scandir(folder)} - {IN, OUT, "stdout", "stderr", "events"}
    return [f"changed its input: {os.path.relpath(path, folder)!r}" for path in changed] + [
        f"wrote beside its output: {name!r}" for name in beside
    ]
