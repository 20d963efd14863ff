"""Sets how long OpenMP's threads spin before they sleep. Torch reads this when it is loaded, so do not import it here.

At the end of every operation, threads wait for the slowest one. In GNU's OpenMP a thread spins 300,000 times before it
sleeps, which takes longer than a time slice of the scheduler. If another process is busy, a spinning thread uses up the
time that the thread it waits for needs, and two threads are many times slower than one (`benchmarks/busy.py`). A short
spin covers the gap between two operations and has no measurable cost on an idle machine.
"""

import os
import sys

# If you set one of these, you decide how threads wait.
_USER_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_SHORT_SPIN = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "1"}  # GNU: iterations; LLVM and Intel: milliseconds


def bound_spinning() -> None:
    """Let threads spin only briefly, here and in child processes, unless the user has chosen a waiting policy."""
    if "torch" not in sys.modules and not any(name in os.environ for name in _USER_SETTINGS):
        os.environ.update(_SHORT_SPIN)
