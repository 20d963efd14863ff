"""A lock that names its holder, and ends with it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carp.files.lock import LockHeldError, held

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
