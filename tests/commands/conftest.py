"""The command line in this process: fast, and with its real entry point."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import carp
from carp.cli import main
from carp.config import Config
from carp.training.planning.timing import Timing
from tests.helpers import tiny_images, write_images, write_recipe

Cli = Callable[..., tuple[int, str, str]]
# Names that attack a page
HOSTILE = [
    "<img src=x onerror=alert(1)>.png",
    "\"'><script>alert(2)</script>.png".replace("/", ""),
    "line\nbreak & tab\t.png",
    "\u202egnp.\u05d0\u05d1.png",
    "{{ 7 * 7 }} </title>.png".replace("/", ""),
    "x" * 251 + ".png",
]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli(words…)` is `carp words…`: exit code, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["carp", *(str(word) for word in words)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """66 images of 32 pixels in three classes."""
    return write_images(tmp_path_factory.mktemp("labelled"), tiny_images(66), classes=3)


@pytest.fixture(scope="session")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 images of 32 pixels without labels."""
    return write_images(tmp_path_factory.mktemp("flat"), tiny_images())


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One epoch of four steps."""
    return write_recipe(tmp_path_factory.mktemp("recipe") / "tiny.yaml", epochs=1)


@pytest.fixture(scope="session")
def run(labelled: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Copy it before you change it."""
    out = tmp_path_factory.mktemp("run") / "run"
    carp.train(labelled, out, recipe, quiet=True, epochs=2)
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, found on the path or by CARP_BROWSER."""
    found = os.environ.get("CARP_BROWSER") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no browser: install chromium, or set CARP_BROWSER to its path")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox", "--enable-unsafe-swiftshader", "--use-angle=swiftshader"]
        started = driver.chromium.launch(executable_path=found, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 images in two classes, some with names that attack a page."""
    folder = write_images(tmp_path_factory.mktemp("hostile") / "images", tiny_images(40), classes=2)
    for number, name in enumerate(HOSTILE):
        inside = folder / f"class-{number % 2}"
        (inside / f"{number:03d}.png").rename(inside / name)
    return folder


def assert_one_line(result: tuple[int, str, str], *words: str) -> None:
    """One line on standard error with these words, nothing on standard output, and a non-zero exit."""
    code, out, err = result
    assert code == 2, err
    assert out == ""
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert err.startswith("carp: error: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


@pytest.fixture
def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 224 pixels takes a minute."""

    def timed(config: Config, *_: object, **__: object) -> Timing:
        seconds = 60 * (config.global_size / 224) ** 2
        return Timing(seconds, seconds, steps=1, images=config.batch_size, threads=1, others=0.0)

    monkeypatch.setattr("carp.training.planning.time_budget.time_steps", timed)
