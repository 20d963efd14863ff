"""The parts of the configuration: every key belongs to one, and code that needs one takes no more."""

from pathlib import Path

import numpy as np
import pytest

import carp
from carp import config as parts
from carp.config import (
    Config,
    EncoderSettings,
    LoaderSettings,
    ViewSettings,
    resolve_part,
)
from carp.config.field_types import Settings
from carp.errors import ConfigError
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.images.views.view_parameters import view_kinds
from carp.model.encoder import build_encoder, num_features
from tests.helpers import tiny_images

ALL = [part for part in Config.__mro__ if issubclass(part, Settings) and part not in {Config, Settings}]


def test_every_key_is_declared_by_exactly_one_part() -> None:
    declared = [key for part in ALL for key in vars(part).get("__annotations__", {})]
    assert sorted(declared) == sorted(Config.model_fields)


def test_every_part_can_be_imported_from_the_package() -> None:
    assert all(getattr(parts, part.__name__) is part for part in ALL)


def test_every_part_works_alone_with_the_defaults_of_the_whole() -> None:
    whole = Config()
    for part in ALL:
        alone = part()
        assert alone.model_dump() == {key: getattr(whole, key) for key in part.model_fields}


def test_an_encoder_views_and_batches_need_their_part_only() -> None:
    small = {"encoder": "resnet18", "encoder_options": {"channels": [4, 4, 4, 4]}, "global_size": 32}
    assert num_features(build_encoder(EncoderSettings(**small))) == 4
    assert [kind.size for kind in view_kinds(ViewSettings(global_size=32, local_views=1, local_size=16))] == [
        32,
        32,
        16,
    ]
    loader = make_loader(ArraySource(tiny_images(8)), LoaderSettings(batch_size=4, global_size=32, device="cpu"))
    assert [np.shape(batch.views[0]) for batch in loader.batches(0, 2)] == [(4, 3, 32, 32)] * 2


def test_a_part_resolves_its_own_auto_and_ignores_the_settings_of_others() -> None:
    values = {"batch_size": "auto", "micro_batch": "auto", "num_prototypes": 7, "block_size": 3, "hue": 0.2}
    loading = resolve_part(LoaderSettings, values, num_images=5000)
    assert (loading.batch_size, loading.hue) == (256, 0.2)
    with pytest.raises(ConfigError, match="hue"):
        resolve_part(ViewSettings, {"hue": 2})


def test_views_and_checks_of_images_do_not_build_a_training_configuration(tmp_path: Path) -> None:
    """Prototypes that cannot be divided into blocks concern training alone."""
    contradiction = {"num_prototypes": 7, "block_size": 3, "global_size": 32}
    assert carp.check_data(tiny_images(8), **contradiction).ok
    assert carp.views(tiny_images(8), out=tmp_path / "views.png", **contradiction).exists()
    with pytest.raises(ConfigError, match="block_size"):
        carp.train(tiny_images(8), tmp_path / "run", quiet=True, **contradiction)
    with pytest.raises(ConfigError, match="Did you mean 'block_size'"):
        carp.check_data(tiny_images(8), blok_size=3)
