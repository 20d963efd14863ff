"""`carp train --procs N`: the same command in several processes of this machine, by torchrun."""

import os
from collections.abc import Sequence

from carp.compute import distributed
from carp.compute.parent import LAUNCHER
from carp.compute.threads import available_cores


def launch(words: Sequence[str], *, processes: int) -> int:
    """Run `carp words…` in `processes` processes and return the exit code of the first that fails, or 0.

    What went wrong was told by that process, so torchrun's own report is not shown.
    """
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    try:
        return distributed.launch(["-m", "carp", *words], processes=processes)
    finally:
        del os.environ[LAUNCHER]  # another launcher that this process starts later has another number
