"""Several processes that share a task, as forks of one interpreter: torch is imported once, and gloo joins them."""

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable

from carp.compute import distributed


def in_processes(world: int, function: Callable[[], object], *, seconds: float = 120.0) -> None:
    """Call `function` in `world` forks that find each other; raise if one of them fails or takes too long."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sys.stdout.flush()
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            os._exit(_call(function))
        pids.append(pid)
    left, end, failed = list(pids), time.monotonic() + seconds, list[str]()
    while left and not failed:
        time.sleep(0.01)
        for pid in list(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.remove(pid)
                code = os.waitstatus_to_exitcode(status)
                failed += [f"process {pids.index(pid)} of {world} ended with {code}"] if code else []
        if time.monotonic() > end:
            failed.append(f"{len(left)} of {world} processes hang")
    for pid in left:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    if failed:
        raise AssertionError(f"{getattr(function, '__name__', function)}: {'; '.join(failed)}")


def _call(function: Callable[[], object]) -> int:
    try:
        function()
        distributed.barrier()  # the first process keeps the store
        distributed.stop()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    sys.stdout.flush()
    return 0
