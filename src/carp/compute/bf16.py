"""Whether the CPU multiplies in bf16, and a way around processors that crash when they do.

Some virtual machines advertise AMX but end every process that uses its tile registers with SIGILL. oneDNN uses them, so
the first product in bf16 would end the process without a message. A forked child tries it first. If the child dies,
oneDNN is kept to AVX-512 by `ONEDNN_MAX_CPU_ISA`, which it reads when it is first used. If it has been used already,
bf16 is refused.
"""

import os
import resource
import signal
import time
import warnings
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch

_ISA, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
_SECONDS = 10.0  # a product takes milliseconds

Tiles = Literal["none", "work", "avoided", "crash"]


def cpu_computes_bf16() -> bool:
    """Return whether bf16 is faster than fp32: with AVX-512 BF16 or AMX.

    Elsewhere it is emulated and far slower. Where AMX must be avoided, it is a little slower.
    """
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private, so a version of torch may lack them
    return any(getattr(torch.cpu, probe, bool)() for probe in probes) and find_tiles() in {"none", "work"}


@cache
def find_tiles() -> Tiles:
    """Return whether the tile registers of AMX work. If they do not, keep oneDNN from using them."""
    if not getattr(torch.cpu, "_is_amx_tile_supported", bool)():
        return "none"
    if survives(_multiply):
        return "avoided" if _ISA in os.environ else "work"  # a parent process may have set it
    os.environ.setdefault(_ISA, _WITHOUT_TILES)
    return "avoided" if survives(_multiply) else "crash"


def _multiply() -> None:
    torch.set_num_threads(1)  # the threads of the parent do not exist in a forked child
    factor = torch.ones(64, 64, dtype=torch.bfloat16)
    factor @ factor


def survives(work: Callable[[], object]) -> bool:
    """Return whether a forked copy of this process can do some work without an illegal instruction."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # an exception in a hook of fork would be lost
    child = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks while other threads run
            child = os.fork()
    finally:
        if child != 0:  # the child ends with its signals blocked
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if child == 0:
        signal.signal(signal.SIGILL, signal.SIG_DFL)  # faulthandler would print a traceback
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            work()
        finally:
            os._exit(0)
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGILL)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True
