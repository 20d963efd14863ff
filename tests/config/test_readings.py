"""`reading` is replaced by plain settings, which always win."""

from typing import Any

import pytest
import yaml

from carp.config import READINGS, BatchSettings, Config, HeadSettings, differences, resolve, resolve_part
from carp.config.recipe import to_yaml
from carp.errors import ConfigError

KEYS = sorted(READINGS["authors"])


def of(config: Config) -> dict[str, Any]:
    return {key: getattr(config, key) for key in KEYS}


def test_both_readings_set_the_same_keys_and_differ_in_every_one() -> None:
    printed, authors = READINGS["printed"], READINGS["authors"]
    assert printed.keys() == authors.keys()
    assert all(printed[key] != authors[key] for key in KEYS)


def test_the_printed_reading_is_the_default() -> None:
    assert of(Config()) == READINGS["printed"] == of(Config(reading="printed"))
    assert Config().reading == "printed"


def test_the_authors_reading_sets_all_its_keys_however_it_is_given() -> None:
    assert of(Config(reading="authors")) == READINGS["authors"]
    assert of(resolve({"reading": "authors", "epochs": "auto"}, num_images=100)) == READINGS["authors"]


@pytest.mark.parametrize("key", KEYS)
def test_a_setting_that_is_given_wins_over_the_reading(key: str) -> None:
    printed = READINGS["printed"][key]
    assert of(Config(**{"reading": "authors", key: printed})) == {**READINGS["authors"], key: printed}
    authors = READINGS["authors"][key]
    assert of(Config(**{key: authors, "reading": "printed"})) == {**READINGS["printed"], key: authors}


def test_a_written_configuration_has_the_plain_settings_and_gives_back_the_same() -> None:
    config = Config(reading="authors", pairs="sum")
    written = yaml.safe_load(to_yaml(config))
    assert {key: written[key] for key in KEYS} == {**READINGS["authors"], "pairs": "sum"}
    assert resolve(written, num_images=1) == config


def test_a_configuration_of_an_older_version_is_the_printed_reading() -> None:
    older = {key: value for key, value in Config().model_dump().items() if key not in KEYS and key != "reading"}
    assert resolve(older | {"accumulate": "fast"}, num_images=1) == Config(accumulate="fast")


def test_parts_of_the_configuration_follow_the_reading_too() -> None:
    assert resolve_part(HeadSettings, {"reading": "authors", "epochs": 3}).pairs == "mean"
    assert BatchSettings(reading="authors").accumulate == "independent"


def test_only_the_plain_settings_make_a_difference() -> None:
    assert differences(Config(reading="authors", **READINGS["printed"]), Config()) == {}
    assert differences(Config(reading="authors"), Config(**READINGS["authors"])) == {}
    assert differences(Config(reading="authors"), Config()).keys() == set(KEYS)


@pytest.mark.parametrize("value", ["author", "", None, 3, ["authors"], {"authors": 1}])
def test_another_reading_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="reading must be 'printed' or 'authors'"):
        resolve({"reading": value}, num_images=1)
