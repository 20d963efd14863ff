"""All checks in their order, and their findings as one report."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from carp.console.progress import Display
from carp.console.quantities import duration
from carp.readiness.data_rate import check_data_rate
from carp.readiness.file_system import check_file_system
from carp.readiness.finding import SEVERITY, Check, Finding, Verdict
from carp.readiness.head_agreement import check_head
from carp.readiness.host_waits import check_waits
from carp.readiness.recipe_step import check_step
from carp.readiness.run_time import check_plan, check_time
from carp.readiness.several_processes import check_processes
from carp.readiness.subject import Subject
from carp.readiness.system import check_system
from carp.readiness.ten_steps import check_training

# The memory of a step is measured early, while little has been allocated; later checks use the time of a step
CHECKS = (
    Check("machine", check_system),
    Check("run folder", check_file_system),
    Check("plan", check_plan),
    Check("step", check_step),
    Check("head", check_head),
    Check("ten steps", check_training),
    Check("host waits", check_waits),
    Check("time", check_time),
    Check("images", check_data_rate),
    Check("processes", check_processes),
)


@dataclass(frozen=True)
class Examination:
    """The findings of `carp doctor`."""

    findings: list[Finding]
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return max((finding.verdict for finding in self.findings), key=SEVERITY.__getitem__)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.verdict != "fail"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        found = [asdict(finding) for finding in self.findings]
        return {"ok": self.ok, "verdict": self.verdict, "seconds": self.seconds, "findings": found}

    def lines(self) -> Iterator[str]:
        """Yield one line per finding, then a summary."""
        yield from (finding.line() for finding in self.findings)
        counts = {kind: sum(finding.verdict == kind for finding in self.findings) for kind in SEVERITY}
        summary = ", ".join(f"{counts[kind]} {kind}" for kind in ("pass", "warn", "fail", "n/a") if counts[kind])
        advice = "ready" if self.ok else "not ready: follow the remedies of the lines that fail"
        yield f"{advice} ({summary}; {duration(self.seconds)})"


def examine(subject: Subject, display: Display) -> Examination:
    """Run all checks."""
    start, findings = time.monotonic(), list[Finding]()
    for check in CHECKS:
        display.say(f"checking: {check.name}")
        findings += check.run(subject)
    return Examination(findings, time.monotonic() - start)
