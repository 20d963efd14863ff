"""Settings read from the source are those of the functions themselves."""

import re
from pathlib import Path

import pytest

from carp.commands.protocols import PROTOCOLS
from carp.config.recipe import parse_overrides
from carp.evaluation.protocols import check_settings, settings_of
from carp.evaluation.signatures import read_settings


@pytest.mark.parametrize("name", PROTOCOLS)
def test_names_and_defaults_are_those_of_the_function_and_every_setting_has_a_meaning(name: str) -> None:
    module, _, function = PROTOCOLS[name].functions[0].partition(":")
    read = read_settings(module, function)
    assert read
    assert {key: setting.default for key, setting in read.items()} == {
        key: parameter.default for key, parameter in settings_of(PROTOCOLS[name].load()).items()
    }
    for key, setting in PROTOCOLS[name].settings().items():
        assert setting.meaning.endswith("."), key
        assert "\n" not in setting.meaning


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_default_is_accepted_as_it_is_shown(name: str) -> None:
    function = PROTOCOLS[name].load()
    defaults = {key: parameter.default for key, parameter in settings_of(function).items()}
    shown = [setting.written for key, setting in PROTOCOLS[name].settings().items() if key in defaults]
    accepted = check_settings(name, function, parse_overrides(shown))
    for key, value in accepted.items():
        assert (tuple(value) if isinstance(value, list) else value) == defaults[key]


def test_detection_also_has_the_parts_of_voc() -> None:
    settings = PROTOCOLS["detection"].settings()
    assert settings["train"].default == ("2007:trainval", "2012:trainval")
    assert settings["test"].written == "test=[2007:test]"
    assert not {"branch", "out", "device", "quiet", "progress", "state"} & settings.keys()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_documentation_names_the_same_settings(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs/protocols.md").read_text()
    row = re.search(rf"^\| {name} \| (`.*`) \|$", text, re.MULTILINE)
    assert row is not None
    assert re.findall(r"`(\w+)`", row[1]) == list(PROTOCOLS[name].settings())
