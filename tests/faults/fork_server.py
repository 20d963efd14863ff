"""Starts `carp` as real processes, and pays for the import of torch once.

It reads requests, one JSON object a line, on standard input and answers on standard output:
{"start": [arguments], "output": path, ...} forks a child that is `carp arguments` and answers its process id;
{"wait": id} waits for its end and answers its exit code (negative: the signal that killed it).
A child may be told to kill itself before the n-th call that touches the disk in a way that matters (`die_at`), or to
get an error for every file that grows beyond a size (`file_limit`). With `under` and `kill_at` it is killed before its
n-th system call of any kind that changes something in a folder; `calls` names the file for the list of these calls.
"""

import json
import os
import pathlib
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import matplotlib.backends.backend_agg
import matplotlib.figure

import carp.commands.ablate
import carp.commands.attack
import carp.commands.duplicates
import carp.commands.embed
import carp.commands.evaluate
import carp.commands.export
import carp.commands.index
import carp.commands.search
import carp.commands.table
import carp.commands.train
import carp.commands.views
from carp import cli
from carp.features import part_file
from carp.runs import checkpoint

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kill_at_call import run_and_kill

LOADED = (matplotlib.figure, matplotlib.backends.backend_agg, carp.commands.evaluate, carp.commands.train)


def _die_at(number: int) -> None:
    """SIGKILL before the `number`-th call of those that make a run durable."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return wrapper

    os.fsync = counted(os.fsync)
    shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]
    checkpoint.save_file = counted(checkpoint.save_file)
    for name in ("rename", "replace", "mkdir"):
        setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))


def _become_carp(request: dict[str, Any], ready: int) -> None:
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    if "file_limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))
    if "die_at" in request:
        _die_at(request["die_at"])
    os.environ.update(request.get("environment", {}))
    part_file._SECONDS_BETWEEN_NOTES = request.get("note_seconds", part_file._SECONDS_BETWEEN_NOTES)
    sys.argv = ["carp", *request["start"]]
    if "under" in request:
        os.close(ready)
        run_and_kill(_carp, request["under"], request["kill_at"], request["calls"])
    _close_when_handled(ready)
    _carp()


def _close_when_handled(ready: int) -> None:
    """Close a pipe as soon as Ctrl-C has its handler."""
    enter = cli.CtrlC.__enter__

    def entered(ctrl_c: cli.CtrlC) -> cli.CtrlC:
        enter(ctrl_c)
        os.close(ready)
        return ctrl_c

    cli.CtrlC.__enter__ = entered  # type: ignore[method-assign]


def _carp() -> None:
    cli.console()
    sys.exit(0)


def _serve() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            waiting, ready = os.pipe()  # a signal must reach carp, not the preparations for it
            answer = os.fork()
            if answer == 0:
                os.close(waiting)
                _become_carp(request, ready)
            os.close(ready)
            os.read(waiting, 1)
            os.close(waiting)
        print(answer, flush=True)


if __name__ == "__main__":
    _serve()
