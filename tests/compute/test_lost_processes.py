"""What torch and the system report about a lost process is explained in CARP's words."""

import signal

import pytest

from carp.compute import distributed
from carp.compute.launcher import _cause
from carp.errors import ProcessError


@pytest.mark.parametrize(
    ("words", "explanation"),
    [
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)", "timed out waiting"),
        ("NCCL error: remote process exited or there was a network error, NCCL version 2.27", "lost another process"),
        ("Connection closed by peer [127.0.0.1]:1234", "lost another process"),
        ("NCCL communicator was aborted on rank 1.", "NCCL_DEBUG=INFO"),
        ("NCCL error in: x.cpp:5, unhandled cuda error", "NCCL_DEBUG=INFO"),
    ],
)
def test_errors_of_collectives_are_explained(words: str, explanation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ProcessError, match=explanation) as raised, distributed.explained():
        raise RuntimeError(words)
    assert "the same command resumes" in str(raised.value)


def test_other_errors_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="timeout"), distributed.explained():
        raise RuntimeError("a timeout of something in a single process")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="shapes"), distributed.explained():
        raise RuntimeError("shapes do not match")


def test_a_signal_is_named_with_what_usually_sends_it() -> None:
    assert "out of memory" in _cause(signal.SIGKILL)
    assert "NCCL" in _cause(signal.SIGABRT)
    assert "--shm-size" in _cause(signal.SIGBUS)
    assert _cause(signal.SIGSEGV).startswith("SIGSEGV, ")
