"""`CarpEncoder` is a scikit-learn transformer: parameters, pipelines, model selection, names of features."""

import copy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import carp
from tests.helpers import TINY, tiny_images, write_images

SETTINGS = {**TINY, "epochs": 1}
WIDTH = TINY["encoder_options"]["channels"][-1]
# The checks of scikit-learn that pass no table of numbers to the estimator
CHECKS = [
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_parameters_default_constructible,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_mixin_order,
]


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Dark and bright images."""
    noise = tiny_images(48).astype(np.int64) // 4
    return (noise + 160 * (np.arange(48) % 2)[:, None, None, None]).astype(np.uint8)


@pytest.fixture(scope="module")
def run(images: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return carp.train(images, tmp_path_factory.mktemp("sklearn") / "run", quiet=True, **SETTINGS).folder


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checks_of_scikit_learn_that_apply(check: object) -> None:
    check("CarpEncoder", carp.CarpEncoder())  # type: ignore[operator]


def test_check_estimator_passes() -> None:
    """It skips the checks that pass tables of numbers, because of the tags."""
    estimator_checks.check_estimator(carp.CarpEncoder())


def test_a_given_model_is_used_as_it_is(run: Path, images: np.ndarray) -> None:
    encoder = carp.CarpEncoder(run)
    features = encoder.fit_transform(images)
    np.testing.assert_array_equal(features, carp.load(run).embed(images))
    assert features.dtype == np.float32
    assert list(encoder.get_feature_names_out()) == [f"carpencoder{i}" for i in range(WIDTH)]


def test_fit_trains_and_keeps_the_encoder_in_memory(run: Path, images: np.ndarray) -> None:
    """With the same settings as the run, so that the features are the same."""
    encoder = carp.CarpEncoder(settings=SETTINGS).fit(images)
    np.testing.assert_array_equal(encoder.transform(images), carp.load(run).embed(images))
    again = copy.deepcopy(encoder)
    np.testing.assert_array_equal(again.transform(images), encoder.transform(images))


def test_a_run_folder_is_resumed(images: np.ndarray, tmp_path: Path) -> None:
    encoder = carp.CarpEncoder(settings=SETTINGS, out=tmp_path / "run").fit(images)
    first = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = clone(encoder).fit(images)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == first
    np.testing.assert_array_equal(again.transform(images), encoder.transform(images))


def test_in_a_pipeline_with_cross_validation(run: Path, images: np.ndarray) -> None:
    pipeline = make_pipeline(carp.CarpEncoder(run), LogisticRegression())
    labels = np.arange(48) % 2
    assert cross_val_score(pipeline, images, labels, cv=3).mean() > 0.9
    files = [Image.fromarray(image) for image in images]
    assert cross_val_score(pipeline, files, labels, cv=3).mean() > 0.9
    pipeline.set_params(carpencoder__size=16)
    assert pipeline.fit(images, labels).named_steps["carpencoder"].encoder_.size == 16


def test_paths_are_images_too(run: Path, images: np.ndarray, tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path / "images", images).iterdir())
    np.testing.assert_array_equal(carp.CarpEncoder(run).fit_transform(paths), carp.load(run).embed(images))


def test_mistakes(run: Path, images: np.ndarray) -> None:
    with pytest.raises(NotFittedError):
        carp.CarpEncoder(run).transform(images)
    with pytest.raises(carp.CarpError, match="trains nothing"):
        carp.CarpEncoder(run, settings={"epochs": 2}).fit(images)
    with pytest.raises(carp.CarpError, match="uint8"):
        carp.CarpEncoder(run).fit(images.astype(np.float32))
