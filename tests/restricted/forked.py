"""Functions in a forked child with a limit of memory, so that a bomb ends the child and not the tests."""

import json
import os
import resource
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

MEBIBYTE = 2**20


def in_child(function: Callable[[], Any], *, more: int, seconds: int = 300) -> tuple[Any, int]:
    """What the function gives (as JSON), and by how many bytes the memory of the child grew at most.

    Args:
        function: Runs in the child.
        more: Bytes of address space that the child may take beyond what it has.
        seconds: After them it is killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # the threads of the parent are not there
            signal.alarm(seconds)
            limit = _address_space() + more
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answer = function()
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
            os.write(writing, json.dumps([answer, grown]).encode())
            code = 0
        except BaseException:
            os.write(writing, json.dumps([traceback.format_exc()[-3000:], -1]).encode())
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert os.WIFEXITED(status), f"the child was ended by signal {os.WTERMSIG(status)}"
    answer, grown = json.loads(text)
    assert os.WEXITSTATUS(status) == 0, answer
    return answer, int(grown)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
