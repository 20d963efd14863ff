"""What `carp doctor` finds if something is wrong: each check on a small run, with a part of it broken."""

import errno
import fcntl
import mmap
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.errors import ConfigError, DataError
from carp.images.sources.array import ArraySource
from carp.model.loss import LossTerms, carp_loss, reference_loss
from carp.readiness import head_agreement, several_processes, system
from carp.readiness.examination import Examination
from carp.readiness.file_system import check_file_system, file_system_of
from carp.readiness.finding import Check, Finding
from carp.readiness.head_agreement import check_head
from carp.readiness.host_waits import check_waits
from carp.readiness.recipe_step import check_step, peak_bytes
from carp.readiness.run_time import check_plan
from carp.readiness.several_processes import check_processes
from carp.readiness.subject import Subject, small_run
from carp.readiness.system import check_system
from carp.readiness.ten_steps import _gradients, check_training
from carp.training.loop import build_model
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


def subject(folder: Path, **changes: Any) -> Subject:
    config = resolve({**TINY, **changes}, num_images=64)
    return Subject(config, ArraySource(tiny_images()), True, CPU, folder, folder, 2)


def verdicts(found: Iterator[Finding]) -> dict[str, str]:
    return {finding.name: finding.verdict for finding in found}


def test_a_check_that_stops_has_failed_with_the_reason(tmp_path: Path) -> None:
    def mistake(_: Subject) -> Iterator[Finding]:
        yield Finding("first", "pass", "1")
        raise DataError("no images. Add some.")

    def bug(_: Subject) -> Iterator[Finding]:
        yield Finding("first", "warn", "1", "2")
        raise ZeroDivisionError("a\nb")

    first, second = Check("mistake", mistake).run(subject(tmp_path))
    assert (first.verdict, second.verdict, second.remedy) == ("pass", "fail", "no images. Add some.")
    assert "ZeroDivisionError, a b" in Check("bug", bug).run(subject(tmp_path))[1].measured


@pytest.mark.parametrize(
    ("kinds", "verdict", "ok"),
    [(("pass", "n/a"), "pass", True), (("pass", "warn"), "warn", True), (("warn", "fail", "pass"), "fail", False)],
)
def test_the_worst_finding_decides(kinds: tuple[Any, ...], verdict: str, ok: bool) -> None:
    found = Examination([Finding(kind, kind, "measured", "remedy") for kind in kinds], 2.0)
    assert (found.verdict, found.ok) == (verdict, ok)
    *lines, last = found.lines()
    assert len(lines) == len(kinds)
    assert all("measured -> remedy" in line for line in lines)
    assert last.startswith("ready" if ok else "not ready")


def test_a_head_that_is_wrong_by_a_thousandth_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert set(verdicts(check_head(subject(tmp_path))).values()) == {"pass"}

    def wrong(*args: Any) -> LossTerms:
        total, consistency, kl = carp_loss(*args)
        return LossTerms(1.001 * total, consistency, kl)

    monkeypatch.setattr(head_agreement, "carp_loss", wrong)
    assert set(verdicts(check_head(subject(tmp_path))).values()) == {"fail"}


def test_the_case_of_underflow_underflows_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pseudo-code, which has no log space, is infinite there."""
    monkeypatch.setattr(head_agreement, "carp_loss", reference_loss)
    assert not np.isfinite(head_agreement.head_difference(CPU, *head_agreement._CASES["underflow"]))
    assert np.isfinite(head_agreement.head_difference(CPU, *head_agreement._CASES["blocks"]))


def test_a_file_system_without_locks_fails_and_a_small_disk_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = verdicts(check_file_system(subject(tmp_path)))
    assert {found[name] for name in ("lock", "rename", "space")} == {"pass"}
    assert file_system_of(tmp_path)
    assert file_system_of(Path("/proc")) == "proc"

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=10, used=9, free=1))
    broken = {finding.name: finding for finding in check_file_system(subject(tmp_path))}
    assert broken["lock"].verdict == broken["space"].verdict == "fail"
    assert "No locks available" in broken["lock"].measured
    assert "keep_checkpoints" in broken["space"].remedy


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    examined = subject(tmp_path)
    examined.out = None
    assert verdicts(check_file_system(examined)) == {"run folder": "n/a"}


def test_ten_steps_are_finite_exact_and_resumable(tmp_path: Path) -> None:
    found = list(check_training(subject(tmp_path)))
    assert {finding.name: finding.verdict for finding in found} == dict.fromkeys(
        ("ten steps", "gradients", "micro-batches", "resume"), "pass"
    )
    assert "the same bits" in found[-1].measured


def test_half_precision_is_used_in_the_ten_steps(tmp_path: Path) -> None:
    found = list(check_training(subject(tmp_path, precision="bf16")))
    assert "in bf16" in found[0].measured
    assert {finding.verdict for finding in found} == {"pass"}
    micro_batches = next(finding for finding in found if finding.name == "micro-batches")
    assert micro_batches.values["relative_difference"] > 0


def test_a_parameter_without_a_gradient_is_named(tmp_path: Path) -> None:
    model = build_model(small_run(subject(tmp_path).config, 4), CPU)
    for p in model.student.parameters():
        p.grad = torch.ones_like(p)
    assert _gradients(model).verdict == "pass"
    model.student.assigner.directions_KD.grad = None
    found = _gradients(model)
    assert found.verdict == "warn"
    assert "directions_KD" in found.measured


def test_a_batch_larger_than_the_data_does_not_pass(tmp_path: Path) -> None:
    found = Check("plan", check_plan).run(subject(tmp_path, batch_size=256))
    assert found[0].verdict == "fail"
    assert "batch_size=64" in found[0].remedy


def test_waits_beyond_the_budget_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (found,) = check_waits(subject(tmp_path))
    assert (found.verdict, found.values) == ("pass", {"waits": 2})
    monkeypatch.setattr("carp.model.head._UNDERFLOW", {torch.float32: 2.0})
    (found,) = check_waits(subject(tmp_path))
    assert found.verdict == "warn"


def test_memory_and_phases_of_a_step(tmp_path: Path) -> None:
    memory, phases = check_step(subject(tmp_path))
    assert memory.verdict == "pass"
    parts = {"student", "teacher", "head", "optimiser", "backward"}
    assert parts < set(phases.values)
    assert sum(phases.values[part] for part in parts) == pytest.approx(phases.values["step"], rel=0.5)


def test_the_peak_of_memory_includes_what_was_freed() -> None:
    def work() -> int:
        pages = np.frombuffer(mmap.mmap(-1, 2**26), dtype=np.uint8)  # new pages; np.ones may reuse freed ones
        pages.fill(1)
        return int(pages.sum())

    peak, result = peak_bytes(CPU, work)
    assert result == 2**26
    assert peak is None or 0.95 * 2**26 < peak < 1.5 * 2**26


def test_too_little_shared_memory_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    photographs = subject(tmp_path, global_size=224, workers=8, encoder_options={}, stem="encoder")
    monkeypatch.setattr("carp.images.loading.chunks.free_shared_memory", lambda: 2**21)
    found = {finding.name: finding for finding in check_system(photographs)}
    assert found["shared memory"].verdict == "fail"
    assert "--shm-size" in found["shared memory"].remedy
    assert found["versions"].verdict == "pass"
    assert "torch" in found["versions"].measured


def test_processes_that_differ_are_slow_or_wait_do_not_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The reports are made up here; tests/commands/test_doctor.py has those of real processes."""
    examined = subject(tmp_path)
    examined.seconds_per_step = 1.0
    alone = several_processes.loss_curve(CPU, 5)
    good = {"losses": alone, "uneven": 1e-15, "seconds": [1e-4, 1e-3, 1e-2]}
    bad = {"losses": [1.001 * loss for loss in alone], "uneven": 0.1, "seconds": [1.0, 10.0, 1e4]}
    for report, noticed, expected in ((good, 0.1, ["pass"] * 4), (bad, 90.0, ["fail", "fail", "warn", "warn"])):
        monkeypatch.setattr(several_processes, "_run", lambda *_, made=([report] * 2, noticed): made)
        found = list(check_processes(examined))
        assert [finding.verdict for finding in found] == expected
        assert all(finding.remedy for finding in found if finding.verdict != "pass")
        (tmp_path / "together").rmdir()


def test_a_precision_that_is_slower_than_fp32_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for seconds, verdict, used in ((0.5, "pass", "bf16"), (3.0, "warn", "fp32")):
        times = {torch.bfloat16: seconds, torch.float32: 1.0}
        monkeypatch.setattr(system, "_seconds_of_product", lambda _, dtype, times=times: times[dtype])
        examined = subject(tmp_path, precision="bf16")
        found = {finding.name: finding for finding in check_system(examined)}
        assert (found["precision"].verdict, examined.config.precision) == (verdict, used)
    monkeypatch.undo()
    assert 0 < system._seconds_of_product(CPU, torch.float32) < 60


def test_processes_that_cannot_start_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(several_processes.sys, "executable", "/bin/false")
    (found,) = Check("processes", check_processes).run(subject(tmp_path))
    assert found.verdict == "fail"
    assert "process 0 of 2 failed" in found.remedy or "process 1 of 2 failed" in found.remedy


def test_more_processes_than_none() -> None:
    from carp.readiness.subject import _processes

    with pytest.raises(ConfigError, match="at least 1"):
        _processes(0, CPU)
    assert _processes(None, CPU) == 2
    assert _processes(3, CPU) == 3
