"""Tests compute with one thread: several would wait for each other beside other work or a second test process."""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

from carp.compute.bf16 import find_tiles

find_tiles()  # tests compute in bf16 without a command that would look for a processor that crashes

# Files of few and long tests: if they come last, one core works and the other waits
_FIRST = ("/processes/", "/faults/", "/test_threads.py", "/test_memory.py", "/test_readme.py", "/test_fuzz.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start the longest files first."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next((number for number, part in enumerate(_FIRST) if part in path), len(_FIRST))

    items.sort(key=place)
