"""Install the built wheel in clean environments outside the repository, use it there, and measure time and size.

    python -m benchmarks.install

Without extras, `carp train`, `carp eval knn` and `carp embed` work on the embedded images, and a command that needs an
extra names it in one line. With the extra `eval`, `carp index` and `carp search` work as well. `make test-wheel` runs
this; the exit code is 1 if anything fails.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).parents[1]
TINY = ("epochs=1", "batch_size=256", "report=false", "device=cpu", "num_prototypes=256", "block_size=64")
_REPEATS = 5


class CheckError(Exception):
    """A command did not end as it should."""


class Environment:
    """A clean environment, without this repository and without bytecode flags."""

    def __init__(self, folder: Path, name: str, requirement: str) -> None:
        self.name, self._folder, self._work = name, folder / name, folder / f"{name}-work"
        self._work.mkdir()
        venv.create(self._folder, with_pip=True)
        before = time.monotonic()
        self.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
        self.seconds = time.monotonic() - before
        self.gigabytes = sum(f.lstat().st_size for f in self._folder.rglob("*") if f.is_file()) / 1e9

    def run(self, program: str, *words: str, code: int = 0) -> str:
        """Run a program of the environment; return both streams."""
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
        environment = {key: value for key, value in os.environ.items() if key not in hidden}
        done = subprocess.run(
            [self._folder / "bin" / program, *words],
            cwd=self._work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != code:
            text = f"{program} {' '.join(words)}: exit code {done.returncode} instead of {code}"
            raise CheckError(f"{text}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def best_seconds(self, program: str, *words: str) -> tuple[float, float]:
        """Return the best time of several, and the best processor time, which depends less on other processes."""
        times, own = [], []
        for _ in range(_REPEATS):
            before, used = time.monotonic(), _processor_seconds()
            self.run(program, *words)
            times.append(time.monotonic() - before)
            own.append(_processor_seconds() - used)
        return min(times), min(own)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def build(folder: Path) -> tuple[Path, Path]:
    """Build wheel and sdist from the repository; the wheel is made from the sdist, so the sdist is complete."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def check_without_extras(place: Environment) -> None:
    """Train, evaluate and embed; commands that need an extra say so."""
    place.run("carp", "train", "embedded:shapes-test", "--out", "run", "--recipe", "small-images", *TINY)
    found = place.run("carp", "eval", "knn", "run", "--data", "embedded:shapes-test", "--branch", "teacher")
    if "teacher" not in found:
        raise CheckError(f"carp eval knn printed no row of the teacher:\n{found}")
    place.run("carp", "embed", "run", "--data", "embedded:shapes-test", "--out", "features")
    said = place.run("carp", "index", "features", code=2).strip().splitlines()
    if len(said) != 1 or "pip install 'carp-ssl[eval]'" not in said[0]:
        raise CheckError(f"carp index did not name its extra in one line: {said}")


def check_search(place: Environment) -> None:
    """Search with the extra that it needs."""
    place.run("carp", "train", "embedded:shapes-test", "--out", "run", "--recipe", "small-images", *TINY)
    place.run("carp", "embed", "run", "--data", "embedded:shapes-test", "--out", "features")
    place.run("carp", "index", "features")
    place.run("python", "-c", "from PIL import Image; Image.new('RGB', (32, 32), 'red').save('red.png')")
    found = place.run("carp", "search", "features", "red.png", "--k", "3", "--json")
    if found.count("similarity") != 3:
        raise CheckError(f"carp search found no three images:\n{found}")


def main(words: Sequence[str] | None = None) -> None:
    """Build, install, use, measure, print."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args(words)
    columns = ("environment", "installation, s", "size, GB", "import carp, s", "carp --help, s", "processor time, s")
    console, table = Console(), Table(*columns)
    with tempfile.TemporaryDirectory(prefix="carp-install-") as scratch:
        folder = Path(scratch)
        wheel, source = build(folder / "dist")
        console.print(f"wheel {wheel.stat().st_size / 1e6:.2f} MB, sdist {source.stat().st_size / 1e6:.2f} MB")
        try:
            for extras, check in (("", check_without_extras), ("[eval]", check_search)):
                place = Environment(folder, f"with{extras.strip('[]') or 'out-extras'}", f"{wheel}{extras}")
                check(place)
                bare, _ = place.best_seconds("python", "-c", "pass")
                imported, _ = place.best_seconds("python", "-c", "import carp")
                helped, processor = place.best_seconds("carp", "--help")
                row = (f"{place.seconds:.0f}", f"{place.gigabytes:.2f}", f"{imported - bare:.3f}", f"{helped:.2f}")
                table.add_row(escape(f"carp-ssl{extras}"), *row, f"{processor:.2f}")
        except CheckError as failure:
            console.print(str(failure), markup=False)
            sys.exit(1)
    console.print(table)
    console.print(f"Times of import and help: best of {_REPEATS}; import without the start of the interpreter.")


if __name__ == "__main__":
    main()
