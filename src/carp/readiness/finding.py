"""The terms of `carp doctor`: a check yields findings, and a finding has a verdict and a remedy."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from carp.compute.device import deterministic, products_in
from carp.errors import CarpError
from carp.readiness.subject import Subject

Verdict = Literal["pass", "warn", "fail", "n/a"]
SEVERITY: dict[Verdict, int] = {"n/a": 0, "pass": 1, "warn": 2, "fail": 3}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    verdict: Verdict
    """`n/a`: not available here, so nothing was measured."""
    measured: str
    remedy: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    """The measured numbers by name, in bytes, seconds, images per second or counts."""

    def line(self) -> str:
        """Return the finding as one line of text."""
        return f"{self.verdict:<5} {self.name:<20} {self.measured}{f' -> {self.remedy}' if self.remedy else ''}"


@dataclass(frozen=True)
class Check:
    """A named generator of findings."""

    name: str
    find: Callable[[Subject], Iterator[Finding]]

    def run(self, subject: Subject) -> list[Finding]:
        """Return the findings. A check that cannot be completed has failed, whatever stopped it."""
        found: list[Finding] = []
        try:
            with deterministic(subject.config.deterministic), products_in(subject.config.precision):
                found.extend(self.find(subject))
        except CarpError as error:
            found.append(Finding(self.name, "fail", "the check stopped", str(error)))
        except Exception as error:  # the libraries and drivers under test may raise anything
            reason = " ".join(str(error).split())[:300]
            remedy = "if the versions above are compatible, report this as a bug in CARP"
            found.append(Finding(self.name, "fail", f"the check stopped: {type(error).__name__}, {reason}", remedy))
        return found


def judged(
    name: str, good: bool, measured: str, remedy: str, *, otherwise: Verdict = "fail", values: Mapping[str, float] = {}
) -> Finding:
    """Return a finding that passes if `good`, and needs the remedy otherwise."""
    return Finding(name, "pass" if good else otherwise, measured, "" if good else remedy, values)
