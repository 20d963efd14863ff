"""Recipes and other settings in files."""

from pathlib import Path

import pytest
import torch

from carp.config import resolve
from carp.config.recipe import list_recipes, read_recipe, read_yaml, recipe_path, to_yaml
from carp.errors import ConfigError
from carp.model.encoder import build_encoder


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_resolves_builds_and_survives_yaml(name: str, tmp_path: Path) -> None:
    config = resolve(read_recipe(name), num_images=100_000)
    with torch.device("meta"):
        encoder = build_encoder(config)
        features = encoder(torch.empty(2, 3, config.global_size, config.global_size))
    assert features.shape[0] == 2
    assert features.ndim == 2
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert resolve(read_yaml(path), num_images=100_000) == config


def test_every_shipped_recipe_says_what_it_is_and_how_to_run_it() -> None:
    recipes = list_recipes()
    assert {"folder", "demo"} <= recipes.keys()
    for name, first_line in recipes.items():
        assert len(first_line) > 10, name


def test_the_recipes_of_the_paper_say_that_they_follow_the_authors_code() -> None:
    names = [name for name in list_recipes() if name.startswith("imagenet-")]
    assert len(names) == 7
    for name in names:
        config = resolve(read_recipe(name), num_images=100_000)
        assert (config.reading, config.pairs, config.entropy_weight) == ("authors", "mean", (1.0, 1.0)), name
        header = recipe_path(name).read_text().partition("\nreading:")[0]
        assert "# Reading:  the authors' code" in header
        assert "reading=printed" in header
        assert ("# lr:" in header) is (config.epochs == 400)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"epochs: [1, 2", ["not valid YAML"]),
        (b"- 1\n- 2\n", ["key: value", "list"]),
        (b"just text", ["key: value", "str"]),
        (b"\xff\xfe\xfa", ["not valid YAML"]),
        (b"a: !!python/object/apply:os.system ['true']", ["not valid YAML"]),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_on_one_line(
    tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_yaml(path)
    assert "\n" not in str(raised.value)
    for word in [str(path), *words]:
        assert word in str(raised.value)


def test_an_empty_file_is_the_empty_recipe(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_recipe(tmp_path / "empty.yaml") == {}
