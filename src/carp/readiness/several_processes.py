"""Several processes on this machine: do they compute what one computes, how fast do they talk, is a loss noticed?"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from carp.compute.parent import SUPERVISOR
from carp.compute.threads import available_cores
from carp.console.quantities import duration, in_bytes
from carp.errors import ProcessError
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject
from carp.readiness.together import SIZES, loss_curve
from carp.training.planning.estimate import estimate

_SECONDS = 240.0  # for all checks of the processes
_NOTICED = 60.0  # seconds: the timeout of these processes
_LOSS_TOLERANCE, _HEAD_TOLERANCE = 1e-4, 1e-4
_SHARE = 0.25  # of a step that may be spent on the exchange of gradients


def check_processes(subject: Subject) -> Iterator[Finding]:
    """Yield findings about collectives: equality with one process, bandwidth, and a process that is killed."""
    world = subject.processes
    if world == 1:
        yield Finding("processes", "n/a", "not examined", "give --procs 2 or more")
        return
    alone = loss_curve(subject.device, 2 * world + 1)
    folder = subject.scratch / "together"
    folder.mkdir()
    reports, noticed = _run(folder, world, subject.device)
    curve = reports[0]["losses"]
    far = max(abs(ours - theirs) / abs(theirs) for ours, theirs in zip(curve, alone, strict=True))
    yield judged(
        "processes, equality",
        far < _LOSS_TOLERANCE,
        f"losses and gradients of {world} processes differ from those of one by {far:.1e} (allowed: "
        f"{_LOSS_TOLERANCE:.0e})",
        "several processes do not compute what one does: check that all devices and their drivers are the same",
        values={"relative_difference": far},
    )
    uneven = max(report["uneven"] for report in reports)
    yield judged(
        "processes, uneven",
        uneven < _HEAD_TOLERANCE,
        f"shares of different sizes, down to one image, differ from the whole batch by {uneven:.1e}",
        "use a batch_size that the number of processes divides, and report this as a bug in CARP",
        values={"relative_difference": uneven},
    )
    yield _bandwidth(subject, [max(report["seconds"][i] for report in reports) for i in range(len(SIZES))])
    message = json.loads((folder / "lost-0.json").read_text()) if (folder / "lost-0.json").exists() else ""
    yield judged(
        "processes, kill",
        noticed < _NOTICED,
        f"after one is killed, the others end within {duration(noticed)}{'' if message else ' without an explanation'}",
        "lower timeout_minutes: the others keep waiting, and paying, for that long",
        otherwise="warn",
        values={"seconds": noticed},
    )


def _bandwidth(subject: Subject, seconds: Sequence[float]) -> Finding:
    rates = ", ".join(f"{in_bytes(size)} in {duration(taken)}" for size, taken in zip(SIZES, seconds, strict=True))
    needs = estimate(subject.config)
    gradients = 4 * (needs.encoder_parameters + needs.projector_parameters + needs.prototype_parameters)
    per_step = seconds[-1] * gradients / SIZES[-1]
    step = subject.seconds_per_step
    measured = f"sums over {subject.processes} processes: {rates}; gradients of {in_bytes(gradients)} take "
    measured += f"{duration(per_step)} per step" + ("" if step is None else f" of {duration(step / subject.processes)}")
    return judged(
        "bandwidth",
        step is None or per_step < _SHARE * step / subject.processes,
        measured,
        "use a larger batch_size, prototypes=sharded if they are most of the parameters, or a faster connection",
        otherwise="warn",
        values={"bytes_per_second": SIZES[-1] / seconds[-1], "seconds_per_step": per_step},
    )


def _run(folder: Path, world: int, device: torch.device) -> tuple[list[dict[str, Any]], float]:
    """Start the processes; return their reports, and the seconds from the kill of the last to the end of the others."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    logs = [folder / f"log-{rank}.txt" for rank in range(world)]
    started = [_start(folder, rank, world, port, device, log) for rank, log in enumerate(logs)]
    try:
        end, killed_at = time.monotonic() + _SECONDS, 0.0
        while None in (codes := [process.poll() for process in started]):
            killed_at = killed_at or (0.0 if codes[-1] is None else time.monotonic())
            reported = all((folder / f"report-{rank}.json").exists() for rank in range(world))
            failed = [rank for rank, code in enumerate(codes) if code and not reported]
            if failed or time.monotonic() > end:
                raise ProcessError(_reason(logs, failed, world))
            time.sleep(0.02)
        noticed = time.monotonic() - killed_at if killed_at else 0.0  # all within one interval
    finally:
        for process in started:
            process.kill()
            process.wait()
    missing = [rank for rank in range(world) if not (folder / f"report-{rank}.json").exists()]
    if missing:
        raise ProcessError(_reason(logs, missing, world))
    return [json.loads((folder / f"report-{rank}.json").read_text()) for rank in range(world)], noticed


def _start(folder: Path, rank: int, world: int, port: int, device: torch.device, log: Path) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(max(1, available_cores() // world)),
        SUPERVISOR: str(os.getpid()),
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "carp.readiness.together", folder, device.type],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _reason(logs: Sequence[Path], failed: Sequence[int], world: int) -> str:
    if not failed:
        return f"{world} processes did not finish within {duration(_SECONDS)}: they hang, or the machine is too busy."
    lines = logs[failed[0]].read_text(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it printed nothing"
    return f"process {failed[0]} of {world} failed: {last}. On GPUs, NCCL_DEBUG=INFO prints the details."
