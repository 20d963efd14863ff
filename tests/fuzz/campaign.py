"""Many inputs: which there are, how far they got, and what is kept of those that failed."""

import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz.case import Case, Outcome, Target
from tests.fuzz.interpreter import Interpreter
from tests.fuzz.oracle import faults
from tests.fuzz.targets import TARGETS
from tests.fuzz.valid import Valid

_EVERY = 5.0  # seconds from one line of progress to the next


@dataclass
class Tally:
    """The figures of one target."""

    wanted: int
    tried: int = 0
    failed: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    codes: dict[int, int] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """Inputs without a fault."""
        return self.tried - self.failed

    def add(self, outcome: Outcome, wrong: list[str]) -> None:
        """Count an input."""
        self.tried += 1
        self.failed += bool(wrong)
        self.seconds += outcome.seconds
        self.peak_bytes = max(self.peak_bytes, outcome.peak_bytes)
        self.codes[outcome.code] = self.codes.get(outcome.code, 0) + 1


def shares(count: int, names: list[str]) -> dict[str, int]:
    """How many inputs each target gets, at least one; together exactly `count` where there are enough."""
    whole = sum(TARGETS[name].share for name in names)
    wanted = {name: max(1, count * TARGETS[name].share // whole) for name in names}
    wanted[names[0]] += max(0, count - sum(wanted.values()))
    return wanted


def random_for(seed: int, name: str, number: int) -> Random:
    """All that is random about one input."""
    return Random(f"{seed}/{name}/{number}")


@dataclass
class Campaign:
    """Inputs of some targets, tried one after the other."""

    count: int
    seed: int
    names: list[str]
    failures: Path
    """Folder for the inputs that fail."""
    jobs: int = 1
    quiet: bool = False

    def run(self) -> dict[str, Tally]:
        """Try all inputs; returns the figures by target."""
        tallies = {name: Tally(wanted) for name, wanted in shares(self.count, self.names).items()}
        with tempfile.TemporaryDirectory(prefix="carp-fuzz-") as scratch:
            interpreter, targets = prepare(Path(scratch), self.names)
            running: dict[Path, tuple[str, int]] = {}
            begun = shown = time.monotonic()
            for name, number in self._order(tallies):
                running[interpreter.start(targets[name](random_for(self.seed, name, number)))] = name, number
                if len(interpreter) >= self.jobs:
                    self._collect(interpreter, running, tallies)
                if not self.quiet and time.monotonic() - shown > _EVERY:
                    shown = time.monotonic()
                    _show_progress(tallies, shown - begun)
            while len(interpreter):
                self._collect(interpreter, running, tallies)
        return tallies

    @staticmethod
    def _order(tallies: dict[str, Tally]) -> Iterator[tuple[str, int]]:
        """Evenly mixed, so that the rate and the time left are those of the whole."""
        places = [
            ((number + 0.5) / tally.wanted, name, number)
            for name, tally in tallies.items()
            for number in range(tally.wanted)
        ]
        return ((name, number) for _, name, number in sorted(places))

    def _collect(
        self, interpreter: Interpreter, running: dict[Path, tuple[str, int]], tallies: dict[str, Tally]
    ) -> None:
        for case, outcome, folder in interpreter.finish():
            name, number = running.pop(folder)
            wrong = faults(case, outcome, folder)
            tallies[name].add(outcome, wrong)
            if wrong:
                self._keep(name, number, case, outcome, folder, wrong)
            shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, name: str, number: int, case: Case, outcome: Outcome, folder: Path, wrong: list[str]) -> None:
        """The input with its command, what came of it, and how to repeat it."""
        kept = self.failures / f"{name}-{self.seed}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for path in folder.iterdir():
            if path.is_dir():
                shutil.copytree(path, kept / path.name, symlinks=True, ignore=_special)
        (kept / "failure.json").write_text(
            json.dumps(
                {
                    "faults": wrong,
                    "command": shlex.join(["carp", *case.words]),
                    "reproduce": reproduce_command(name, self.seed, number),
                    "note": case.note,
                    "code": outcome.code,
                    "stdout": outcome.stdout[-5000:],
                    "stderr": outcome.stderr[-5000:],
                },
                indent=1,
            )
        )
        print(
            f"FAILED {name} {number}: {wrong[0]:.300}\n       {reproduce_command(name, self.seed, number)}", flush=True
        )


def prepare(scratch: Path, names: list[str]) -> tuple[Interpreter, dict[str, Target]]:
    """An interpreter, and the targets with the valid files that they start from."""
    (scratch / "work").mkdir()
    (scratch / "valid").mkdir()
    interpreter = Interpreter(scratch / "work")
    valid = Valid(scratch / "valid", interpreter)
    return interpreter, {name: TARGETS[name].make(valid) for name in names}


def reproduce(name: str, seed: int, number: int) -> tuple[Case, Outcome, list[str]]:
    """Try one input again."""
    with tempfile.TemporaryDirectory(prefix="carp-fuzz-") as scratch:
        interpreter, targets = prepare(Path(scratch), [name])
        folder = interpreter.start(targets[name](random_for(seed, name, number)))
        ((case, outcome, _),) = list(interpreter.finish())
        return case, outcome, faults(case, outcome, folder)


def reproduce_command(name: str, seed: int, number: int) -> str:
    """What to type to try one input again."""
    return f"python -m tests.fuzz --target {name} --seed {seed} --only {number}"


def table(tallies: dict[str, Tally], seconds: float) -> str:
    """The figures as text."""
    lines = [f"{'target':<10}{'tried':>8}{'passed':>8}{'failed':>8}{'CPU ms':>9}{'peak MiB':>10}   exit codes"]
    for name, tally in tallies.items():
        codes = ", ".join(f"{code}: {count:,}" for code, count in sorted(tally.codes.items()))
        each, peak = 1000 * tally.seconds / max(1, tally.tried), tally.peak_bytes / 2**20
        lines.append(
            f"{name:<10}{tally.tried:>8,}{tally.passed:>8,}{tally.failed:>8,}{each:>9.0f}{peak:>10.0f}   {codes}"
        )
    tried, passed, failed = (
        sum(getattr(tally, key) for tally in tallies.values()) for key in ("tried", "passed", "failed")
    )
    peak = max(tally.peak_bytes for tally in tallies.values()) / 2**20
    lines.append(f"{'all':<10}{tried:>8,}{passed:>8,}{failed:>8,}{'':>9}{peak:>10.0f}   {tried / seconds:.1f} inputs/s")
    return "\n".join(lines)


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes, and files with holes, which a copy would fill."""
    paths = [Path(folder) / name for name in names]
    return [path.name for path in paths if path.is_fifo() or (path.is_file() and path.stat().st_size > 2**26)]


def _show_progress(tallies: dict[str, Tally], seconds: float) -> None:
    tried, wanted = (sum(getattr(tally, key) for tally in tallies.values()) for key in ("tried", "wanted"))
    failed = sum(tally.failed for tally in tallies.values())
    rate = tried / seconds
    left = (wanted - tried) / rate if rate else 0
    print(
        f"{tried:,} of {wanted:,} tried, {failed} failed, {rate:.1f} inputs/s, {left:.0f} s left",
        file=sys.stderr,
        flush=True,
    )
