"""The machine: versions, devices, cores, memory, shared memory, limits, and what other programs use of it."""

import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from carp.compute.device import available_memory
from carp.compute.threads import OtherLoad, available_cores
from carp.console.quantities import counted, in_bytes
from carp.errors import ConfigError
from carp.images.loading.chunks import chunk_size, free_shared_memory
from carp.images.loading.in_memory import is_held
from carp.images.views.view_parameters import view_kinds
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject
from carp.runs.run_folder import versions

_OPEN_FILES = 1024  # shared memory of views on their way is passed on as open files
_SIDES = {"cpu": 384, "other": 4096}  # of the matrices with which the speed of a precision is measured
_NVIDIA = "0x10de"
_SECONDS_OBSERVED = 1.0
_BUSY = 0.25  # cores that other programs may use before times are called upper bounds


def check_system(subject: Subject) -> Iterator[Finding]:
    """Yield findings about the software, the devices and the resources of this machine."""
    yield Finding("versions", "pass", ", ".join(f"{name} {version}" for name, version in versions().items()))
    yield from _devices(subject)
    yield from _cores(subject)
    free = available_memory(torch.device("cpu"))
    yield Finding("memory", "pass", f"{in_bytes(free)} is free", values={"free_bytes": free})
    yield _shared_memory(subject)
    yield from _limits(subject)
    load = OtherLoad()
    time.sleep(_SECONDS_OBSERVED)
    others = load.cores()
    yield judged(
        "other programs",
        others < _BUSY,
        f"use {others:.1f} of {counted(available_cores(), 'core')}",
        "end them and run the doctor again: all times below are too long",
        otherwise="warn",
        values={"cores": others},
    )


def _devices(subject: Subject) -> Iterator[Finding]:
    if not torch.cuda.is_available():
        built_for = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        if _has_nvidia_card():
            measured = f"not available: this machine has one, but torch, {built_for}, cannot use it"
            remedy = "install a driver and a build of torch for it, or start the container with --gpus all"
            yield Finding("GPU", "warn", measured, remedy)
        else:
            yield Finding("GPU", "n/a", f"not available; torch was {built_for}")
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        yield judged(
            f"GPU {number}",
            free > 0.9 * total,
            f"{about.name}, {in_bytes(total)}, {in_bytes(free)} of it free, compute capability "
            f"{about.major}.{about.minor}",
            "end the programs that use it",
            otherwise="warn",
            values={"bytes": total, "free_bytes": free},
        )
    if torch.cuda.is_available():
        yield _driver()
        yield _nccl()
    yield from _precision(subject)


def _precision(subject: Subject) -> Iterator[Finding]:
    """Compare the speed of the chosen precision with fp32; if it is only emulated, later checks use fp32."""
    chosen = subject.config.precision
    if not subject.config.half:
        return
    half = torch.float16 if chosen == "fp16" else torch.bfloat16
    factor = _seconds_of_product(subject.device, half) / _seconds_of_product(subject.device, torch.float32)
    slower = f"products in {chosen} take {factor:.2g} times as long as in fp32"
    yield judged(
        "precision",
        factor < 1,
        slower if factor < 1 else f"{slower}: {subject.device} has no {chosen}, so the checks below use fp32",
        "set precision=fp32 on this machine",
        otherwise="warn",
        values={"relative_time": factor},
    )
    if factor >= 1:
        subject.config = subject.config.model_copy(update={"precision": "fp32"})


def _seconds_of_product(device: torch.device, dtype: torch.dtype) -> float:
    side = _SIDES.get(device.type, _SIDES["other"])
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])  # waits for the device
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])  # the first includes the setup


def _has_nvidia_card() -> bool:
    """Return whether the system lists a card of Nvidia, even if a container has no access to it."""
    vendors = Path("/sys/bus/pci/devices").glob("*/vendor")
    with suppress(OSError):
        return any(vendor.read_text().strip() == _NVIDIA for vendor in vendors)
    return False


def _driver() -> Finding:
    try:
        first, *_ = Path("/proc/driver/nvidia/version").read_text().splitlines()
    except (OSError, ValueError):  # AMD, or not Linux
        return Finding("driver", "n/a", "its version is unknown")
    return Finding("driver", "pass", f"{' '.join(first.split())}; torch was built for CUDA {torch.version.cuda}")


def _nccl() -> Finding:
    try:
        version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return Finding("NCCL", "fail", "not available", "install a build of torch with NCCL")
    return Finding("NCCL", "pass", f"version {version}")


def _cores(subject: Subject) -> Iterator[Finding]:
    cores, quota = available_cores(), _quota()
    usable = cores if quota is None else min(cores, quota)
    yield judged(
        "cores",
        usable >= cores,
        f"{counted(cores, 'core')} may be used{'' if quota is None else f', of which the container gets {quota:.1f}'}",
        f"set OMP_NUM_THREADS={max(1, int(usable))}, or raise the limit (docker run --cpus)",
        otherwise="warn",
        values={"cores": usable},
    )
    if not is_held(subject.config):
        workers = _workers(subject)
        yield judged(
            "workers",
            workers <= cores,
            f"{counted(workers, 'worker')} in total for {subject.processes} processes, on {counted(cores, 'core')}",
            f"set workers={cores}, or workers=auto",
            otherwise="warn",
        )


def _workers(subject: Subject) -> int:
    """Return the number of workers of all processes on this machine: each has at least one."""
    return max(subject.config.workers, subject.processes) if subject.config.workers else 0


def _quota() -> float | None:
    """Return the number of cores that the control group allows; None if it sets no limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(limit) / int(period)
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _shared_memory(subject: Subject) -> Finding:
    config, free = subject.config, free_shared_memory()
    if is_held(config) or not config.workers or free is None:
        return Finding("shared memory", "n/a", "not needed: no worker processes hand over views")
    images = -(-config.batch_size // subject.processes)
    each = sum(3 * kind.size**2 for kind in view_kinds(config))
    try:
        size = chunk_size(images, each, _workers(subject))
    except ConfigError as error:
        return Finding("shared memory", "fail", f"{in_bytes(free)} is free", str(error), {"free_bytes": free})
    measured = f"{in_bytes(free)} is free; workers hand over {counted(size, 'image')} at a time"
    return Finding("shared memory", "pass", measured, values={"free_bytes": free, "images_at_a_time": size})


def _limits(subject: Subject) -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judged(
        "open files",
        soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES,
        f"{'no limit' if soft == resource.RLIM_INFINITY else f'at most {soft:,}'} per process",
        f"run `ulimit -n {_OPEN_FILES}` first",
        otherwise="warn",
    )
    if subject.device.type == "cuda" and sys.platform.startswith("linux"):
        locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        yield judged(
            "pinned memory",
            locked == resource.RLIM_INFINITY,
            "no limit" if locked == resource.RLIM_INFINITY else f"at most {in_bytes(locked)} may be locked",
            "run `ulimit -l unlimited` (docker run --ulimit memlock=-1): InfiniBand needs it",
            otherwise="warn",
        )
