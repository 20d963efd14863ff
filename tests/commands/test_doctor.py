"""`carp doctor` as a whole, on a tiny recipe: all checks, both forms of output, the exit code."""

import json
from pathlib import Path

import pytest

import carp
from carp.errors import ConfigError
from carp.readiness import examination
from carp.readiness.finding import Check, Finding
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images, write_recipe


def test_every_check_passes_or_says_what_to_do_and_nothing_remains(cli: Cli, tmp_path: Path) -> None:
    data, recipe = write_images(tmp_path / "images", tiny_images()), write_recipe(tmp_path / "tiny.yaml")
    code, out, _ = cli("doctor", "--data", data, "--recipe", recipe, "--out", tmp_path / "run", "--json")
    found = json.loads(out)
    lines = found["findings"]
    assert (code, found["ok"]) == (0, True), [line for line in lines if line["verdict"] == "fail"]
    names = {line["name"] for line in lines}
    assert names > {"versions", "lock", "rename", "peak memory", "phases", "head, underflow", "ten steps", "resume"}
    assert names > {"host waits", "time", "images", "upload", "bandwidth", "processes, kill", "processes, equality"}
    kill = next(line for line in lines if line["name"] == "processes, kill")
    assert "without an explanation" not in kill["measured"]
    assert kill["values"]["seconds"] < 30
    assert all(line["remedy"] for line in lines if line["verdict"] == "warn")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "tiny.yaml"]
    hours = next(line for line in lines if line["name"] == "time")["values"]["hours"]
    assert 0 < hours < 1


def test_a_failure_is_the_exit_code_and_python_returns_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = Check("bad", lambda _: iter([Finding("bad", "fail", "3 of 4", "replace it", {"count": 3})]))
    monkeypatch.setattr(examination, "CHECKS", (bad,))
    recipe = write_recipe(tmp_path / "tiny.yaml")
    code, out, _ = cli("doctor", "--recipe", recipe)
    assert code == 1
    assert "fail  bad" in out
    assert "3 of 4 -> replace it" in out
    found = carp.doctor(recipe=recipe)
    assert not found.ok
    assert found.as_dict()["findings"][0]["values"] == {"count": 3}


def test_mistakes(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for words in (["--data", tmp_path / "none"], ["--recipe", "none"], ["epochz=3"], ["--procs", "0"]):
        assert_one_line(cli("doctor", *words))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="--procs"):
        carp.doctor()
