"""How much slower the demo's training is beside another busy process, and what adjusting the threads costs when idle.

    python -m benchmarks.busy              about ten minutes on two idle cores
    python -m benchmarks.busy --whole      `carp demo` itself, idle and busy: about fifteen minutes

Contenders take turns in every round, each in a process of its own:
- as torch starts: one thread per core, OpenMP's own long spin;
- one thread;
- passive: one thread per core, which sleep as soon as they wait;
- carp: as `carp train` runs by default.

Each trains the recipe `demo` without validation. The rate is that of the steps, without the start of the program, so
that short measurements speak for long runs. The fastest round counts. Run it on a machine that is otherwise idle.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_OMP = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_CONTENDERS = {
    "as torch starts": {"OMP_NUM_THREADS": str(os.cpu_count()), "GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
    "passive": {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "passive"},
    "carp": {},
}
# Prints the seconds of a run of `steps` steps; the first ones, in which everything warms up, are not counted.
_TRAIN = """
import sys, time
from carp.training.step import Stepper
import carp
out, epochs, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
call, ends = Stepper.__call__, []
def timed(self, *arguments, **options):
    result = call(self, *arguments, **options)
    ends.append(time.monotonic())
    if ends[-1] - ends[0] > limit:
        report()
        sys.stdout.flush()
        import os
        os._exit(0)
    return result
def report():
    print(128 * (len(ends) - 3) / (ends[-1] - ends[2]))
Stepper.__call__ = timed
carp.train("embedded:shapes", out, "demo", epochs=epochs, validation=None, report=False, quiet=True)
report()
"""


def main() -> None:
    """Measure, and print a table and the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="of 37 steps each")
    parser.add_argument("--seconds", type=float, default=30.0, help="longest run of a contender")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="time `carp demo` from start to end instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = _whole() if arguments.whole else _rates(arguments.rounds, arguments.epochs, arguments.seconds)
    print(json.dumps(found, indent=1) if arguments.json else _table(found))


def _rates(rounds: int, epochs: int, seconds: float) -> dict[str, dict[str, float]]:
    """Images per second of every contender, idle and busy; the best of the rounds."""
    found: dict[str, dict[str, float]] = {name: {"idle": 0.0, "busy": 0.0} for name in _CONTENDERS}
    for turn in range(rounds):
        for state in ("idle", "busy"):
            for name, environment in _CONTENDERS.items():
                with tempfile.TemporaryDirectory() as folder, _load(state == "busy"):
                    words = [sys.executable, "-c", _TRAIN, f"{folder}/run", str(epochs), str(seconds)]
                    rate = float(_run(words, environment).split()[-1])
                found[name][state] = max(found[name][state], rate)
                print(f"round {turn + 1}/{rounds}, {state}, {name}: {rate:.0f} images/s", file=sys.stderr)
    return found


def _whole() -> dict[str, dict[str, float]]:
    """Seconds of `carp demo`, from start to end: torch's own two threads idle, CARP's choice idle and busy."""
    found: dict[str, dict[str, float]] = {}
    for name, state in (("as torch starts", "idle"), ("carp", "idle"), ("carp", "busy")):
        with tempfile.TemporaryDirectory() as folder, _load(state == "busy"):
            start = time.monotonic()
            _run([sys.executable, "-m", "carp", "demo", "--out", f"{folder}/demo"], _CONTENDERS[name])
            found.setdefault(name, {})[state] = time.monotonic() - start
        print(f"{state}, {name}: {found[name][state]:.0f} s", file=sys.stderr)
    return found


def _run(words: list[str], environment: dict[str, str]) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in _OMP}
    done = subprocess.run(words, env=clean | environment, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    if done.returncode:
        raise SystemExit(f"a contender failed:\n{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def _load(busy: bool) -> Iterator[None]:
    """One process that computes without a pause."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def _table(found: dict[str, dict[str, float]]) -> str:
    lines = ["| | idle | beside one busy process |", "| --- | --- | --- |"]
    lines += [f"| {name} | {row['idle']:.0f} | {row.get('busy', float('nan')):.0f} |" for name, row in found.items()]
    torch_idle, carp = found["as torch starts"]["idle"], found["carp"]
    if carp["idle"] > 1000:  # images per second, not seconds
        lines.append(f"idle: carp takes {torch_idle / carp['idle']:.2f} times the time of torch's own threads")
        lines.append(f"busy: carp takes {carp['idle'] / carp['busy']:.2f} times its idle time")
    else:
        lines.append(f"idle: carp takes {carp['idle'] / torch_idle:.2f} times the time of torch's own threads")
        lines.append(f"busy: carp takes {carp['busy'] / carp['idle']:.2f} times its idle time")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
