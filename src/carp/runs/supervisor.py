"""Runs the same command several times at once, for work that they divide among themselves.

The copies run in the background: their output lines are prefixed with the number of the copy, a signal is passed on to
each of them once, and they end with this process even if it is killed.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import IO

from carp.compute.parent import SUPERVISOR
from carp.errors import Interrupted
from carp.runs.stop_signal import StopSignal

_SECONDS_BETWEEN_LOOKS = 0.1


def supervise(words: Sequence[str], *, copies: int) -> int:
    """Run `carp words…` in several copies; return 0, or the exit code of the first copy that fails.

    Standard output of the copies is dropped: the caller prints the outcome.
    """
    environment = {**os.environ, SUPERVISOR: str(os.getpid())}
    with StopSignal() as stop:
        # In sessions of their own, as Ctrl-C in a terminal would otherwise reach them twice, which ends them at once
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "carp", *words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="backslashreplace",
                start_new_session=True,
            )
            for _ in range(copies)
        ]
        readers = [
            threading.Thread(target=_print_lines, args=(number, copy.stderr), daemon=True)
            for number, copy in enumerate(started, 1)
        ]
        for reader in readers:
            reader.start()
        code, passed_on = 0, False
        while any(copy.poll() is None for copy in started):
            if stop.number and not passed_on:
                passed_on = True
                for copy in started:
                    copy.send_signal(stop.number)
            code = code or next((copy.returncode for copy in started if copy.returncode), 0)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        for reader in readers:
            reader.join(timeout=5)
    if stop.number:
        raise Interrupted("stopped; everything is saved. Rerun the same command to resume.", stop.number)
    code = code or next((copy.returncode for copy in started if copy.returncode), 0)
    return 128 - code if code < 0 else code


def _print_lines(number: int, stream: IO[str] | None) -> None:
    assert stream is not None
    for line in stream:
        sys.stderr.write(f"[{number}] {line}")
        sys.stderr.flush()
