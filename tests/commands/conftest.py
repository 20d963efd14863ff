"""The command line in this process: fast, and with its real entry point."""

from collections.abc import Callable
from pathlib import Path

import pytest

import carp
from carp.cli import main
from tests.helpers import tiny_images, write_images, write_recipe

Cli = Callable[..., tuple[int, str, str]]


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
