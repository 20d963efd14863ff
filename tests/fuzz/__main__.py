"""`python -m tests.fuzz`: damaged and hostile inputs against the real command line; `make fuzz` calls it."""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

# One thread each: they must be set before NumPy and PyTorch start, and a process with threads cannot be forked safely
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["COLUMNS"] = "400"

from tests.fuzz.campaign import Campaign, reproduce, table  # noqa: E402
from tests.fuzz.targets import TARGETS  # noqa: E402


def main() -> int:
    """Parse the command line; the exit code is 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="number of inputs in total")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="only this target; can be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="commands to run at the same time")
    parser.add_argument("--failures", type=Path, default=Path("runs/fuzz-failures"), help="folder for inputs that fail")
    parser.add_argument("--only", type=int, help="try this one input of a target and show what it prints")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    if given.only is not None:
        return _try_again(names[0], given.seed, given.only)
    begun = time.monotonic()
    tallies = Campaign(given.inputs, given.seed, names, given.failures, jobs=given.jobs).run()
    print(table(tallies, time.monotonic() - begun))
    if given.json is not None:
        given.json.write_text(json.dumps({name: asdict(tally) for name, tally in tallies.items()}, indent=1))
    failed = sum(tally.failed for tally in tallies.values())
    if failed:
        print(f"{failed} failed: {given.failures}/*/failure.json say how to reproduce each")
    return 1 if failed else 0


def _try_again(name: str, seed: int, number: int) -> int:
    case, outcome, wrong = reproduce(name, seed, number)
    print(f"command   carp {' '.join(case.words)[:500]}\nnote      {case.note}\nexit code {outcome.code}")
    print(f"stdout    {outcome.stdout[-3000:]!r}\nstderr    {outcome.stderr[-3000:]}")
    print(f"faults    {wrong or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
