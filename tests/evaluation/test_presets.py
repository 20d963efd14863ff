"""Presets: what they declare, and what wins over them."""

from typing import Any

import pytest
from pydantic import Field

from carp.errors import ConfigError
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import OPTIONS, AnyProtocol
from carp.evaluation.protocols import all_protocols, find_protocol
from carp.features.feature_options import FeatureOptions

WITH_PRESETS = [p for p in all_protocols() if issubclass(p.settings_type, PresetSettings)]
PRESETS = [(p, name) for p in WITH_PRESETS for name in p.settings_type.presets]
ids = [f"{p.name} {name}" for p, name in PRESETS]


def test_which_protocols_have_presets() -> None:
    names = {p.name for p in WITH_PRESETS}
    assert names == {"knn", "kmeans", "linear", "few-shot", "retrieval", "copies"}
    assert {name for _, name in PRESETS} == {"paper", "authors"}


@pytest.mark.parametrize(("protocol", "name"), PRESETS, ids=ids)
def test_a_preset_differs_from_the_defaults_in_what_it_declares(protocol: type[AnyProtocol], name: str) -> None:
    kind: Any = protocol.settings_type
    declared, fields = kind.presets[name], kind.model_fields
    chosen = kind(preset=name)
    for key, value in declared.items():
        if key in fields:
            assert getattr(chosen, key) == value != fields[key].default, key
        else:
            assert key in OPTIONS[protocol.needs], f"{protocol.name} has no such setting or option: {key}"
            assert value != FeatureOptions.model_fields[key].default
            assert chosen.extraction()[key] == FeatureOptions(**{key: value}).model_dump()[key]
    unchanged = set(fields) - set(declared) - {"preset"}
    assert {key: getattr(chosen, key) for key in unchanged} == {key: getattr(kind(), key) for key in unchanged}
    assert kind().preset is None
    assert kind().extraction() == {}


@pytest.mark.parametrize(("protocol", "name"), PRESETS, ids=ids)
def test_a_setting_that_is_given_wins(protocol: type[AnyProtocol], name: str) -> None:
    kind: Any = protocol.settings_type
    for key in set(kind.presets[name]) & set(kind.model_fields):
        default = kind.model_fields[key].default
        assert getattr(kind(**{"preset": name, key: default}), key) == default, key


def test_the_settings_of_the_authors_scripts() -> None:
    """The numbers in sthalles/carp, evaluations/."""

    def authors(protocol: str) -> dict[str, Any]:
        settings = find_protocol(protocol).settings_type(preset="authors")
        return settings.model_dump() | settings.extraction()

    kmeans = authors("kmeans")
    assert (kmeans["iterations"], kmeans["redos"], kmeans["images_per_cluster"]) == (100, 10, 256)
    assert (kmeans["scale"], kmeans["interpolation"]) == ("standard", "bilinear")
    linear = authors("linear")
    assert (linear["optimisers"], linear["lrs"], linear["weight_decays"]) == (("lars",), (1.0,), (0.0,))
    assert (linear["epochs"], linear["batch_size"], linear["lr_scaling"]) == (100, 2048, "none")
    assert (linear["choose_on"], linear["crop_interpolation"]) == ("test", "bilinear")
    assert "interpolation" not in linear, "bicubic for the test images"
    few = authors("few-shot")
    assert (few["lr"], few["weight_decay"], few["crops"], few["best_epoch"]) == (0.3, 1e-6, True, True)
    retrieval = authors("retrieval")
    assert (retrieval["max_side"], retrieval["multi_scale"], retrieval["boxes"]) == (512, True, False)
    assert (authors("copies")["side"], authors("copies")["whiten"]) == (320, None)
    assert (authors("knn")["temperature"], authors("knn")["k"]) == (0.07, (10, 20, 100, 200))


def test_the_grid_of_the_paper_is_ibots() -> None:
    paper: Any = find_protocol("linear").settings_type(preset="paper")
    assert (len(paper.lrs), min(paper.lrs), max(paper.lrs)) == (45, 1e-4, 9.0)
    assert 0.03 in paper.lrs
    assert paper.optimisers == ("sgd", "lars")


class OnlyPaper(PresetSettings):
    """A protocol whose authors published no code."""

    presets = {"paper": {"redos": 3}}  # noqa: RUF012
    redos: int = Field(5, ge=1, description="How often.")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"preset": "author"}, "preset must be 'paper' or 'authors', received 'author'"),
        ({"preset": "authors"}, r"no preset 'authors' for this protocol\. Presets: paper\."),
        ({"preset": ["paper"]}, "preset must be 'paper' or 'authors'"),
        ({"preset": "paper", "redos": 0}, "redos must be greater than or equal to 1, received 0"),
        ({"preset": "paper", "rodos": 1}, "no setting 'rodos'. Did you mean 'redos'"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        OnlyPaper(**given)
    assert "\n" not in str(raised.value)
    assert OnlyPaper(preset="paper").redos == 3
    assert OnlyPaper(preset="None").redos == 5
