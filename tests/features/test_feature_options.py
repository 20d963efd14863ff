"""The options of feature extraction: checked in one place, the same in Python and on the command line."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import carp
from carp.cli.model_options import with_model_options
from carp.errors import ConfigError
from carp.features.feature_options import FeatureOptions


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"precision": "half"}, ("precision", "fp32", "bf16", "'half'")),
        ({"size": 0}, ("size", "1", "received 0")),
        ({"batch_size": "many"}, ("batch_size", "'many'")),
        ({"sise": 32}, ("'sise'", "Did you mean 'size'?")),
    ],
)
def test_a_mistake_names_the_option_the_value_and_what_is_accepted(wrong: dict[str, Any], words: tuple[str]) -> None:
    with pytest.raises(ConfigError) as error:
        FeatureOptions(**wrong)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("function", [carp.embed, carp.duplicates])
def test_functions_have_the_same_names_and_defaults(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    for name, field in FeatureOptions.model_fields.items():
        assert parameters[name].default == field.default, name


def test_the_command_line_gives_a_checked_model() -> None:
    app, received = typer.Typer(), list[FeatureOptions]()

    @app.command()
    @with_model_options
    def command(features: FeatureOptions) -> None:
        received.append(features)

    words = ["--size", "96", "--precision", "bf16", "--download", "--root", "sets", "--batch-size", "8"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert received == [FeatureOptions(size=96, precision="bf16", download=True, root=Path("sets"), batch_size=8)]
    assert isinstance(CliRunner().invoke(app, ["--precision", "half"]).exception, ConfigError)
    assert CliRunner().invoke(app, ["--size", "0"]).exit_code == 2
