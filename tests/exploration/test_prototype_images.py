"""Prototypes and their images, against loops."""

import numpy as np
import pytest
import torch

from carp.exploration import prototype_images as module
from carp.exploration.prototype_images import margin, prototype_images

GENERATOR = np.random.default_rng(1)
X = GENERATOR.normal(size=(23, 6)).astype(np.float32)
C = GENERATOR.normal(size=(16, 6)).astype(np.float32)
C[5] = C[11] + 0.001  # twins
PARTS = [torch.arange(16).view(4, 4)]


@pytest.mark.parametrize("at_a_time", [3, 100])
def test_everything_is_what_loops_find(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROTOTYPES_AT_A_TIME", at_a_time)
    found = prototype_images(X, C, PARTS, count=4, twins=3)
    unit = lambda v: v / np.linalg.norm(v, axis=-1, keepdims=True)  # noqa: E731
    cosine = unit(X) @ unit(C).T
    np.testing.assert_array_equal(found.own, cosine.argmax(axis=1))
    np.testing.assert_allclose(found.closeness, cosine.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(found.nearest, np.argsort(-cosine, axis=0)[:4].T)
    ranked = np.sort(cosine, axis=1)
    np.testing.assert_allclose(found.certainty, 1 - (1 - ranked[:, -1]) / (1 - ranked[:, -2]), rtol=1e-3)
    assert found.twins[0][:2] == (5, 11)
    assert found.twins[0][2] > 0.999
    pairs = [(float(unit(C)[a] @ unit(C)[b]), a, b) for a in range(16) for b in range(a + 1, 16)]
    assert [pair[:2] for pair in found.twins] == [(a, b) for _, a, b in sorted(pairs, reverse=True)[:3]]
    assert found.outliers(2) == np.argsort(cosine.max(axis=1))[:2].tolist()
    assert found.shares[found.most_used(1)[0]] == found.shares.max()
    assert found.shares[found.least_used(1)[0]] == found.shares.min()


def test_a_margin_is_one_at_a_centre_and_zero_between_two() -> None:
    best, second = np.float32([1, 0.5, 0.9, 1]), np.float32([0.3, 0.5, 0.8, 1])
    np.testing.assert_allclose(margin(best, second), [1, 0, 0.5, 0], atol=1e-6)


def test_fewer_images_than_a_strip_has_room_for() -> None:
    found = prototype_images(X[:2], C, PARTS, count=8)
    assert found.nearest.shape == (16, 2)
