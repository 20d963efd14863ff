"""A lock that names its holder, and ends with it."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carp.errors import CheckpointError
from carp.files.lock import LockHeldError, NoLocksError, held
from carp.runs.run_folder import locked

HOLDER = """
import sys, time
from pathlib import Path
from carp.files.lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holder_of(path: Path) -> Iterator[int]:
    """The number of a process that holds a lock, and is killed at the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, path], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()


def test_the_error_names_process_host_and_time_and_the_lock_ends_with_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        holder_of(path) as pid,
        pytest.raises(LockHeldError, match=rf"process {pid} on {socket.gethostname()}, since 20\d\d-"),
        held(path),
    ):
        pass
    with held(path):
        assert f'"pid": {os.getpid()}' in path.read_text()


@pytest.mark.parametrize("content", ["", "no JSON", "{}", "[1]"])
def test_a_lock_file_of_another_version_is_respected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lock"
    with holder_of(path):
        path.write_text(content)
        with pytest.raises(LockHeldError), held(path):
            pass


def test_a_lock_that_was_released_names_nobody(tmp_path: Path) -> None:
    with held(tmp_path / "lock"):
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_lock_of_another_machine_is_waited_for(tmp_path: Path) -> None:
    """The holder is lost after a while, as when the lease of a machine on NFS expires."""
    path, told = tmp_path / "lock", list[str]()
    start = time.monotonic()
    with holder_of(path) as pid:
        path.write_text(f'{{"pid": {pid}, "host": "elsewhere", "since": "today"}}')
        with pytest.raises(LockHeldError, match="elsewhere"), held(path, patience=0.3, waiting=told.append):
            pass
        assert time.monotonic() - start > 0.3

        def lose(holder: str) -> None:
            told.append(holder)
            os.kill(pid, 9)

        with held(path, patience=60, waiting=lose):
            pass
    assert told == [f"process {pid} on elsewhere, since today"] * 2


def test_a_lock_of_this_machine_is_not_waited_for(tmp_path: Path) -> None:
    with holder_of(tmp_path / "lock"), pytest.raises(LockHeldError):
        start = time.monotonic()
        try:
            with held(tmp_path / "lock", patience=60):
                pass
        finally:
            assert time.monotonic() - start < 30


def test_a_file_system_without_locks_is_not_a_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(NoLocksError, match="No locks available"), held(tmp_path / "lock", patience=60):
        pass
    with pytest.raises(CheckpointError, match="does not support locks") as raised, locked(tmp_path / "run"):
        pass
    assert "another process is training" in str(raised.value)
