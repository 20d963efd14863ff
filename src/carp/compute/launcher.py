"""`carp train --procs N`: starts the same command in several processes on this machine, with torchrun."""

import logging
import os
import signal
from collections.abc import Sequence

from carp.compute.parent import LAUNCHER
from carp.compute.threads import available_cores
from carp.errors import ProcessError

_CAUSES: dict[int, str] = {
    signal.SIGKILL: "manually or because the system ran out of memory",
    signal.SIGBUS: "because shared memory is full: give the container more (docker run --shm-size=1g)",
    signal.SIGABRT: "by a library that gave up. On GPUs this is NCCL, after another process was lost or did not answer "
    "within timeout_minutes; the lines above name the operation, and NCCL_DEBUG=INFO shows more",
}
_SECONDS_TO_END = 120  # after a signal, for a step and a checkpoint; then torchrun kills the remaining processes


def launch(words: Sequence[str], *, processes: int) -> int:
    """Run `carp words…` in `processes` processes and return the exit code of the first that fails, or 0.

    That process has printed its error, so torchrun's own report is not shown. Raises if a process was killed.
    """
    os.environ[LAUNCHER] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    try:
        return _torchrun(["-m", "carp", *words], processes)
    finally:
        del os.environ[LAUNCHER]  # a launcher that this process starts later has another id


def _cause(number: int) -> str:
    """Name a signal, and what usually sends it."""
    name = signal.Signals(number).name
    return f"{name}, {_CAUSES.get(number, 'manually or by the system')}"


def _torchrun(words: Sequence[str], processes: int) -> int:
    from torch.distributed import run as torchrun  # noqa: PLC0415 - slow, and only the launcher needs it
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    logging.disable()  # silences torchrun's reports of failures and signals; this process does nothing else
    options = ["--standalone", f"--nproc-per-node={processes}", f"--shutdown-timeout={_SECONDS_TO_END}"]
    try:
        torchrun.run(torchrun.parse_args([*options, *words]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        process, failure = error.get_first_failure()
        if failure.exitcode < 0:  # a killed process cannot print its own error
            raise ProcessError(
                f"process {process} of {processes} was killed by {_cause(-failure.exitcode)}. The same command resumes "
                "the run."
            ) from None
        return failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
