"""Processors that announce AMX and crash when it is used. The crash is a real SIGILL, in a child process."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import carp
from carp.compute import bf16
from carp.compute.bf16 import cpu_computes_bf16, find_tiles, survives
from carp.compute.device import best_precision, check_precision
from carp.errors import ConfigError
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")
ISA = "ONEDNN_MAX_CPU_ISA"


def crash() -> None:
    os.kill(os.getpid(), signal.SIGILL)


def crash_with_tiles() -> None:
    if ISA not in os.environ:
        crash()


@pytest.fixture(autouse=True)
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that announces AMX, in a process that has not tried it."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    monkeypatch.setenv(ISA, "")  # so that what `find_tiles` sets is undone
    monkeypatch.delenv(ISA)
    find_tiles.cache_clear()
    yield
    find_tiles.cache_clear()


def test_amx_that_works_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16, "_multiply", lambda: None)
    assert find_tiles() == "work"
    assert cpu_computes_bf16()
    assert ISA not in os.environ


def test_amx_that_crashes_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bf16, "_multiply", crash_with_tiles)
    assert find_tiles() == "avoided"
    assert os.environ[ISA] == "AVX512_CORE_FP16"
    assert best_precision(CPU) == "fp32"
    check_precision("bf16", CPU)  # AVX-512 computes it
    find_tiles.cache_clear()
    assert find_tiles() == "avoided", "a child process inherits the variable and agrees"


def test_bf16_is_refused_if_amx_cannot_be_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bf16, "_multiply", crash)
    assert find_tiles() == "crash"
    with pytest.raises(
        ConfigError, match=r"precision=bf16 would crash.* Use precision=fp32, or set ONEDNN_MAX_CPU_ISA"
    ):
        carp.train(tiny_images(), tmp_path / "run", quiet=True, **{**TINY, "precision": "bf16", "device": "cpu"})
    assert not (tmp_path / "run").exists()
    check_precision("fp32", CPU)


def test_a_processor_without_amx_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(bf16, "_multiply", crash)
    assert find_tiles() == "none"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != ISA}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def test_ctrl_c_waits_while_a_process_forks() -> None:
    """An exception in a hook of `os.fork` would be printed and forgotten."""
    done = run_python(
        "import os, signal\n"
        "from carp.compute.bf16 import survives\n"
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "try: survives(lambda: None)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_ctrl_c_still_works_after_a_fork_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "fork", no_memory)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(OSError, match="allocate"):
        survives(lambda: None)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_other_errors_are_not_illegal_instructions(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bf16, "_SECONDS", 0.2)
    assert survives(lambda: None)
    assert survives(lambda: 1 / 0)
    assert survives(lambda: time.sleep(60)), "a child that hangs is killed"
    assert not survives(crash)
    assert capfd.readouterr() == ("", "")


def test_products_in_bf16_do_not_end_a_process() -> None:
    """Fails where the processor itself crashes and is not recognised."""
    code = (
        "import torch; from carp.compute.device import choose_device; choose_device('cpu'); "
        "x = torch.ones(64, 64, dtype=torch.bfloat16); print((x @ x).sum().item())"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "262144.0\n"), done.stderr
