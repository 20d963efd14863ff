"""Altered copies: what each attack does, and that it depends on nothing but its coordinates."""

import hashlib
import io
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from carp.images.decoding.decode import Pixels, decode
from carp.images.inspect.attacks import ATTACKS, Material, attacked, chosen_strength, stream_of


@cache
def photo(height: int = 90, width: int = 120, seed: int = 0) -> Pixels:
    coarse = np.random.default_rng(seed).integers(30, 226, (6, 8, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def other(_draw: float) -> Pixels:
    return np.zeros((10, 10, 3), dtype=np.uint8)


def copy_of(name: str, strength: float, *, pixels: Pixels | None = None, seed: int = 0, index: int = 5) -> Pixels:
    raw = attacked(photo() if pixels is None else pixels, name, strength, seed=seed, index=index, other=other)
    return decode(raw, name)


ALL = [(name, strength) for name, attack in ATTACKS.items() for strength in attack.strengths]


@pytest.mark.parametrize(("name", "strength"), ALL)
def test_same_coordinates_same_bytes(name: str, strength: float) -> None:
    before = photo().copy()
    first, again = (attacked(photo(), name, strength, seed=1, index=7, other=other) for _ in range(2))
    assert first == again
    assert np.array_equal(photo(), before), "the image itself is not touched"
    with Image.open(io.BytesIO(first)) as image:
        assert image.format == "JPEG"


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in {"jpeg", "resize", "blur"}])
def test_seed_and_index_matter(name: str) -> None:
    strength = ATTACKS[name].strengths[-1] if name != "rotate" else 45
    made = {
        hashlib.sha256(attacked(photo(), name, strength, seed=seed, index=index, other=other)).hexdigest()
        for seed in range(3)
        for index in range(4)
    }
    assert len(made) > (1 if name == "rotate" else 9)  # a turn has two directions only


@pytest.mark.parametrize(("name", "strength"), ALL)
@pytest.mark.parametrize("shape", [(1, 1), (3, 40), (500, 7)])
def test_images_of_any_shape(name: str, strength: float, shape: tuple[int, int]) -> None:
    assert copy_of(name, strength, pixels=photo(*shape)).size


def difference(name: str, strength: float) -> float:
    return float(np.abs(copy_of(name, strength).astype(float) - photo()).mean())


@pytest.mark.parametrize("name", ["jpeg", "blur", "noise"])
def test_strengths_are_ordered_from_mild_to_hard(name: str) -> None:
    differences = [difference(name, strength) for strength in ATTACKS[name].strengths]
    assert differences[0] < differences[-1] / 2
    assert all(a < b + 0.5 for a, b in pairwise(differences))


def test_jpeg_quality_is_that_of_the_file() -> None:
    sizes = [len(attacked(photo(), "jpeg", q, seed=0, index=0, other=other)) for q in ATTACKS["jpeg"].strengths]
    assert sizes == sorted(sizes, reverse=True)


def test_crops_remove_their_share() -> None:
    for percent in ATTACKS["crop"].strengths:
        shares = []
        for index in range(20):
            cut = copy_of("crop", percent, index=index, pixels=photo(300, 400))
            shares.append(1 - cut.shape[0] * cut.shape[1] / (300 * 400))
            assert cut.shape[1] / cut.shape[0] == pytest.approx(4 / 3, rel=0.02)
        assert np.mean(shares) == pytest.approx(percent / 100, abs=0.01)


def test_noise_has_its_deviation() -> None:
    grey = np.full((300, 310, 3), 128, dtype=np.uint8)  # more rows than are made at a time
    stream = stream_of(0, 0, "noise", 25)
    noisy = ATTACKS["noise"].apply(Material(grey, stream, other), 25).astype(float) - 128
    assert noisy.mean() == pytest.approx(0, abs=0.2)
    assert noisy.std() == pytest.approx(25, rel=0.01)
    flat = noisy.reshape(-1)
    assert np.abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 0.01
    assert np.abs(np.corrcoef(noisy[:256].reshape(-1)[: 44 * 930], noisy[256:].reshape(-1))[0, 1]) < 0.02


def test_overlay_covers_its_share() -> None:
    white = np.full((200, 200, 3), 255, dtype=np.uint8)
    for percent in ATTACKS["overlay"].strengths:
        assert (copy_of("overlay", percent, pixels=white) < 128).mean() == pytest.approx(percent / 100, abs=0.02)


def test_turns_keep_the_whole_image() -> None:
    assert copy_of("rotate", 90).shape == (120, 90, 3)
    assert copy_of("rotate", 180).shape == (90, 120, 3)
    turned = copy_of("rotate", 45)
    assert turned.shape[0] > 90
    assert turned.shape[1] > 120
    half = copy_of("rotate", 180)[::-1, ::-1].astype(float)
    assert np.abs(half - photo()).mean() < 2


def test_text_is_within_the_image() -> None:
    dark = np.zeros((100, 60, 3), dtype=np.uint8)  # narrow: words must shrink
    written = copy_of("text", 5, pixels=dark)
    assert (written > 200).any()
    assert (written[:, -1] < 200).all(), "the last letter is not cut"


def test_a_chosen_strength_is_one_of_them_and_all_occur() -> None:
    for name, attack in ATTACKS.items():
        assert {chosen_strength(0, index, name) for index in range(200)} == set(attack.strengths)


def test_numbers_of_attacks_are_fixed() -> None:
    """They are part of the hash: a changed number would change copies that people made before."""
    assert {name: attack.number for name, attack in ATTACKS.items()} == {
        "jpeg": 1,
        "crop": 2,
        "resize": 3,
        "blur": 4,
        "noise": 5,
        "text": 6,
        "overlay": 7,
        "rotate": 8,
        "print-scan": 9,
    }
