"""Python equals the command line: every command is a function of `carp`, with the same names and defaults."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

import carp
from carp.cli import entry  # noqa: F401 - adds the commands
from carp.cli.app import app
from carp.errors import ConfigError
from carp.evaluation.protocols import all_protocols, find_protocol

# Options that are about the screen, the shell or several processes, and have no counterpart in Python
ONLY_COMMAND_LINE = {
    "": {"as_json", "settings", "help"},  # of every command; settings are keyword arguments
    "train": {"val", "dry_run", "procs", "submit"},  # --val is the setting `validation`
    "ablate": {"procs", "jobs", "submit"},
    "eval": {"baselines", "weights", "words"},  # the words are settings; weights are another way to give the model
}
ONLY_PYTHON = {"quiet", "overrides"}
# Commands that print what the package itself contains
NOT_FUNCTIONS = {"recipes", "settings"}
FUNCTIONS = {
    "data check": "check_data",
    "data attack": "attack",
    "check": "check_folder",
    "import": "import_run",
    "report": "report_run",
}


def commands() -> dict[str, Any]:
    """All commands by their words, except those of `carp eval`."""
    root: Any = typer.main.get_command(app)
    found = {}
    for name, command in root.commands.items():
        if name != "eval":
            inside = getattr(command, "commands", None)
            found |= {f"{name} {word}": one for word, one in inside.items()} if inside else {name: command}
    return {name: command for name, command in found.items() if name not in NOT_FUNCTIONS}


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_and_its_function_have_the_same_names_and_defaults(name: str) -> None:
    function: Callable[..., Any] = getattr(carp, FUNCTIONS.get(name, name))
    parameters = inspect.signature(function).parameters
    words = {p.name: p for p in commands()[name].params}
    left_out = ONLY_COMMAND_LINE[""] | ONLY_COMMAND_LINE.get(name, set())
    assert set(words) - left_out == set(parameters) - ONLY_PYTHON
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            # --dry-run needs no --out; the first argument of embed may be None
            assert words[key].required or (name, key) in {("train", "out"), ("embed", "model")}, key
        elif key in words:
            assert plain(words[key].default) == plain(parameter.default), key


@pytest.mark.parametrize("protocol", [protocol.name for protocol in all_protocols()])
def test_evaluate_has_the_options_of_every_protocol(protocol: str) -> None:
    root: Any = typer.main.get_command(app)
    command = root.commands["eval"].get_command(None, protocol)
    settings = find_protocol(protocol).settings_type.model_fields
    words = {p.name: p for p in command.params if p.name not in settings}
    parameters = inspect.signature(carp.evaluate).parameters
    assert set(words) - ONLY_COMMAND_LINE[""] - ONLY_COMMAND_LINE["eval"] <= set(parameters)
    for key in set(words) & set(parameters) - {"data", "model", "branch"}:  # required in Python; --branch is a list
        assert plain(words[key].default) == plain(parameters[key].default), key


def plain(default: Any) -> Any:
    """Paths as text; no list is an empty one."""
    return str(default) if isinstance(default, Path) else default or None


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_function_documents_its_arguments_and_its_result(name: str) -> None:
    function: Callable[..., Any] = getattr(carp, FUNCTIONS.get(name, name))
    text = inspect.getdoc(function) or ""
    for key, parameter in inspect.signature(function).parameters.items():
        stars = {parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        assert f"    {stars}{key}: " in text, key
    assert "Returns:" in text


def test_every_public_name_exists_and_importing_carp_is_cheap() -> None:
    for name in carp.__all__:
        assert getattr(carp, name) is not None
    code = "import carp, sys; print([m for m in ('torch', 'numpy', 'pydantic', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_name_that_is_not_a_string_is_a_mistake_like_any_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no protocol 'None'.* Protocols: knn"):
        carp.evaluate(None, tmp_path, tmp_path)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"there is no format '5'.* Formats: "):
        carp.table(format=5)  # type: ignore[arg-type]


def test_every_mistake_can_be_caught_as_one_kind_of_error(tmp_path: Path) -> None:
    for mistake in (lambda: carp.load(tmp_path / "none"), lambda: carp.check_data("none"), carp.table):
        with pytest.raises(carp.CarpError, match=r"\. Give "):
            mistake()


def test_tables_of_the_package_are_objects(tmp_path: Path) -> None:
    assert "swav" in {row.as_dict()["name"] for row in carp.weights()}
    assert all(row.found is None for row in carp.datasets())
    assert {row.found.state for row in carp.datasets(tmp_path) if row.found} == {"absent"}
    paper = carp.table(layout="knn", with_paper=True, out=tmp_path / "knn.md")
    assert paper.rows
    assert (tmp_path / "knn.md").read_text().count("|") > len(paper.rows)
