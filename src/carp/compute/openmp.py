"""How long OpenMP's threads spin before they sleep. It is read when torch is loaded, so this module must not load it.

At the end of every operation, threads wait for the slowest of them. GNU's OpenMP spins 300,000 times before a thread
sleeps, which takes longer than a time slice of the scheduler. Beside another busy process, one thread then spins away
the very time that the thread it waits for needs, and two threads are many times slower than one (`benchmarks/busy.py`).
A short spin covers the gap between two operations and costs an idle machine nothing that can be measured.
"""

import os
import sys

# Whoever sets one of these has decided how threads wait.
_USER_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}  # GNU's, in turns; LLVM's and Intel's, in milliseconds


def bound_spinning() -> None:
    """Let threads spin only briefly, here and in child processes, unless the user chose a waiting policy."""
    if "torch" not in sys.modules and not any(name in os.environ for name in _USER_SETTINGS):
        os.environ.update(_SHORT_SPIN)
