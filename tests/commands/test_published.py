"""Evaluation as published through the command line: presets, and how images are resized."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import carp
from carp.errors import ConfigError
from tests.commands.conftest import Cli, assert_one_line


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Labelled images that have to be resized: 40 × 50 pixels of coarse noise in two colours."""
    rng = np.random.default_rng(0)
    for i in range(24):
        noise = rng.integers(0, 200, (10, 8, 3)) + np.array([[55, 0, 0], [0, 0, 55]])[i % 2]
        path = tmp_path / "photos" / f"class-{i % 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.astype(np.uint8)).resize((40, 50), Image.Resampling.NEAREST).save(path)
    return tmp_path / "photos"


def test_results_record_the_plain_settings_and_the_name(cli: Cli, run: Path, photos: Path, tmp_path: Path) -> None:
    words = ["eval", "kmeans", run, "--data", photos, "--branch", "teacher", "--out", tmp_path / "out", "iterations=5"]
    for more in ([], ["--preset", "authors"], ["preset=authors", "redos=2", "--interpolation", "bicubic"]):
        code, _, err = cli(*words, *more)
        assert code == 0, err
    found = [json.loads(path.read_text())["settings"] for path in (tmp_path / "out" / "results").iterdir()]
    plain = {
        (
            one.get("preset"),
            one["interpolation"],
            one["scale"],
            one["redos"],
            one["images_per_cluster"],
            len(one["seeds"]),
        )
        for one in found
    }
    assert plain == {
        (None, "bicubic", "unit", 20, "all", 3),
        ("authors", "bilinear", "standard", 10, 256, 1),
        ("authors", "bicubic", "standard", 2, 256, 1),
    }
    stores = [json.loads(path.read_text()) for path in (tmp_path / "out" / "features").glob("*/store.json")]
    assert sorted(store["origin"]["transform"].get("interpolation", "") for store in stores) == ["", "bilinear"]


def test_features_of_another_interpolation_are_other_features(run: Path, photos: Path, tmp_path: Path) -> None:
    stores = {
        how: carp.embed(run, photos, tmp_path / str(how), interpolation=how)  # type: ignore[arg-type]
        for how in (None, "bicubic", "bilinear")
    }
    features = {how: np.array(store.features) for how, store in stores.items()}
    np.testing.assert_array_equal(features[None], features["bicubic"])
    assert np.abs(features["bilinear"] - features["bicubic"]).max() > 1e-3
    with pytest.raises(carp.CarpError, match="interpolation bilinear, not bicubic"):
        carp.embed(run, photos, tmp_path / "bilinear")
    with pytest.raises(carp.CarpError, match="interpolation bicubic, not bilinear"):
        carp.evaluate("knn", None, stores["bicubic"], test=stores["bilinear"], k=3)
    loaded = carp.load(run, interpolation="bilinear").embed(photos)
    np.testing.assert_array_equal(loaded, features["bilinear"])
    with pytest.raises(ConfigError, match="interpolation must be 'bicubic' or 'bilinear'"):
        carp.load(run, interpolation="nearest")  # type: ignore[arg-type]


def test_stored_features_that_a_preset_would_extract_otherwise_are_noted(
    cli: Cli,
    run: Path,
    photos: Path,
    tmp_path: Path,
) -> None:
    for how in ("bicubic", "bilinear"):
        carp.embed(run, photos, tmp_path / how, interpolation=how)
        words = [
            "eval",
            "kmeans",
            "--data",
            tmp_path / how,
            "--out",
            tmp_path / "out",
            "preset=authors",
            "iterations=3",
        ]
        code, _, err = cli(*words)
        assert code == 0, err
        assert ("Embed the images with --interpolation bilinear" in err) == (how == "bicubic")
    assert_one_line(
        cli("eval", "few-shot", "--data", tmp_path / "bilinear", "--out", tmp_path, "preset=authors", "shots=2"),
        "stored features",
        "crops=false",
    )
    words = ["eval", "few-shot", "--data", tmp_path / "bilinear", "--out", tmp_path / "out"]
    code, _, err = cli(*words, "preset=authors", "shots=2", "--no-crops")
    assert code == 0, err
