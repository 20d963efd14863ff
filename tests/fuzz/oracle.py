"""What no command may do, whatever it was given."""

import re
import signal
import unicodedata
from pathlib import Path

from tests.fuzz.case import OUT, Case, Outcome
from tests.fuzz.interpreter import SECONDS
from tests.fuzz.watch import CANARY

ERROR = "carp: error: "
_OWN_LINES = re.compile(  # that CARP writes to the error stream beside an error
    r"(carp: )?(note|warning): |skipped: |[\d,]+ images?, |step \d+[/:]|resuming at step |\s*$"
)
_LONGEST_LINE = 2500  # a line that repeats the input is no error message


def faults(case: Case, outcome: Outcome, folder: Path) -> list[str]:
    """Everything that is wrong with an outcome; nothing when the input passed."""
    found = [*outcome.events, *_ending(case, outcome), *_streams(outcome)]
    if outcome.peak_bytes > case.budget:
        found.append(f"memory: {outcome.peak_bytes / 2**20:,.0f} MiB, the budget is {case.budget / 2**20:,.0f}")
    if canaries := [path for path in (folder, folder / OUT) if (path / CANARY).exists()]:
        found.append(f"code of the input was run: it made {canaries[0] / CANARY}")
    if not found and case.check is not None and (fault := case.check(outcome, folder)):
        found.append(fault)
    return found


def _ending(case: Case, outcome: Outcome) -> list[str]:
    if outcome.code == -signal.SIGALRM:
        return [f"hang: no end in {SECONDS} s"]
    if outcome.code < 0:
        return [f"killed by {signal.Signals(-outcome.code).name}"]
    if outcome.code == 1 and f"{ERROR}there is not enough memory" in outcome.stderr:
        return []
    if outcome.code not in case.codes:
        return [f"exit code {outcome.code}, expected one of {sorted(case.codes)}"]
    return []


def _streams(outcome: Outcome) -> list[str]:
    found = []
    lines = outcome.stderr.removesuffix("\n").split("\n") if outcome.stderr else []
    if "Traceback (most recent call last)" in outcome.stderr + outcome.stdout:
        found.append(f"traceback: {lines[-1] if lines else ''}"[:200])
    elif outcome.code >= 2 or (outcome.code and ERROR in outcome.stderr):
        errors = [line for line in lines if line.startswith(ERROR)]
        if len(errors) != 1:
            found.append(f"{len(errors)} error lines")
        elif len(errors[0]) > _LONGEST_LINE:
            found.append(f"an error line of {len(errors[0]):,} characters")
    elif any(line.startswith(ERROR) for line in lines):
        found.append("an error line and an exit code of success")
    others = [line for line in lines if not line.startswith(ERROR) and not _OWN_LINES.match(line)]
    if others and not found:
        found.append(f"a line on the error stream that is not CARP's: {others[0]!r:.200}")
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        if controls := {c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"}:
            found.append(f"control characters on {name}: {sorted(controls)!r}")
    return found
