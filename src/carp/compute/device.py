"""Chooses the device, makes it deterministic if asked to, and reports how much memory it has left."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from carp.compute.bf16 import cpu_computes_bf16, find_tiles
from carp.errors import ConfigError, received

_AMPERE = (8, 0)  # the first generation of Nvidia's GPUs with TF32


def choose_device(name: str) -> torch.device:
    """Return a torch device that exists on this machine; `auto` is CUDA if available, then MPS, then the CPU."""
    if name in {"auto", "cuda"} and torch.cuda.is_available() and "LOCAL_RANK" in os.environ:
        name = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}"  # torchrun: one GPU per process
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(_unusable(name)) from error
    if device.type == "meta":
        raise ConfigError(_unusable(name, " (it performs no computation)"))
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(_unusable(name, f" ({str(error).splitlines()[0]})")) from error
    if device.type == "cpu":
        find_tiles()  # before the first product
    return device


def _unusable(name: str, reason: str = "") -> str:
    return (
        f"device {received(name)} cannot be used on this machine{reason}. Use {', '.join(_devices())}, or device=auto "
        "for the fastest; a GPU is called 'cuda' (Nvidia, AMD) or 'mps' (Apple)."
    )


def _devices() -> list[str]:
    """Return the devices of this machine that torch can use."""
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def check_precision(precision: str, device: torch.device) -> None:
    """Raise if a device does not have a precision that no other computation can stand in for."""
    if precision == "tf32" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < _AMPERE):
        raise ConfigError(
            f"precision=tf32 needs an Nvidia GPU since Ampere, but this run uses {device}. Use precision=fp32 or bf16."
        )
    if precision == "bf16" and device.type == "cpu" and find_tiles() == "crash":
        raise ConfigError(
            "precision=bf16 would crash: the processor advertises AMX but cannot execute it. Use precision=fp32, or "
            "set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before Python starts."
        )


def best_precision(device: torch.device) -> str:
    """Return half precision where a device computes in it, or fp32 where it would only be emulated."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= _AMPERE else "fp16"
    return "bf16" if device.type == "cpu" and cpu_computes_bf16() else "fp32"


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Let products and convolutions of float32 round their factors to TF32, if that is the precision."""
    if precision != "tf32":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def has_float64(device: torch.device) -> bool:
    """Return whether a device supports double precision; Apple's GPUs do not."""
    return device.type != "mps"


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use only operations that give the same bits every time, if wanted; raise if one has no such version."""
    if not wanted:
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        reason = str(error).split(", but")[0].split(". ")[0]
        raise ConfigError(f"deterministic=true is not possible: {reason}. Use deterministic=false.") from error
    finally:
        torch.use_deterministic_algorithms(before)


def available_memory(device: torch.device) -> int:
    """Return the bytes that a process can still allocate on a device, as reported by the system."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    free = _system_memory()
    try:  # in a container, the limit is that of the container
        limit, used = ((Path("/sys/fs/cgroup") / f"memory.{name}").read_text() for name in ("max", "current"))
        free = min(free, int(limit) - int(used))
    except (OSError, ValueError):  # there is no such file, or its content is "max", unlimited
        pass
    return max(0, free)


def _system_memory() -> int:
    try:
        words = Path("/proc/meminfo").read_text().split()
        return 1024 * int(words[words.index("MemAvailable:") + 1])
    except (OSError, ValueError):  # not Linux: half of the memory is a cautious guess
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
