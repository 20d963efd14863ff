"""Near-copies: groups against a plain implementation, and a threshold that finds copies only where there are some."""

import numpy as np
import pytest
from numpy.typing import NDArray

from carp.similarity import near_copies as copies
from carp.similarity.near_copies import choose_threshold, comparable, connected, find_copies, neighbours, similar_pairs

Vectors = NDArray[np.float32]


def unit(vectors: NDArray[np.float64]) -> Vectors:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def kinds(name: str, count: int, seed: int) -> NDArray[np.float64]:
    """Images without copies: one cloud, a flat one, clusters, clusters of very different density."""
    rng = np.random.default_rng(seed)
    if name == "cloud":
        return rng.standard_normal((count, 64))
    if name == "flat":
        return rng.standard_normal((count, 16))
    centres = rng.standard_normal((20, 64))
    which = rng.integers(0, 20, count)
    width = 0.7 if name == "clusters" else 0.3 + 0.05 * which[:, None]
    return centres[which] + width * rng.standard_normal((count, 64))


@pytest.mark.parametrize("name", ["cloud", "flat", "clusters", "densities"])
@pytest.mark.parametrize("count", [300, 1500])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_copies_where_there_are_none(name: str, count: int, seed: int) -> None:
    found = find_copies(kinds(name, count, seed).astype(np.float32))
    assert found.threshold.value is None, found.threshold
    assert found.groups == []


@pytest.mark.parametrize(
    ("name", "count"),
    [("cloud", 300), ("flat", 300), ("cloud", 1500), ("flat", 1500), ("clusters", 1500), ("densities", 1500)],
)
def test_finds_the_copies_and_nothing_else(name: str, count: int) -> None:
    originals = kinds(name, count, seed=3)
    rng = np.random.default_rng(4)
    chosen = rng.choice(count, 30, replace=False)
    spread = originals.std() * 0.05
    made = originals[chosen] + spread * rng.standard_normal((30, originals.shape[1]))
    found = find_copies(np.concatenate([originals, made]).astype(np.float32))
    assert sorted(found.groups) == sorted([int(c), count + i] for i, c in enumerate(chosen))


@pytest.mark.parametrize("name", ["clusters", "densities"])
def test_small_clusters_hide_copies_but_are_never_taken_for_them(name: str) -> None:
    """With 15 images a cluster the 16th neighbour lies outside: what is to be expected is then overestimated."""
    originals, rng = kinds(name, 300, seed=3), np.random.default_rng(4)
    chosen = rng.choice(300, 30, replace=False)
    made = originals[chosen] + 0.05 * originals.std() * rng.standard_normal((30, 64))
    found = find_copies(np.concatenate([originals, made]).astype(np.float32))
    wanted = [[int(c), 300 + i] for i, c in enumerate(chosen)]
    assert all(group in wanted for group in found.groups)


def test_several_copies_of_one_image_are_one_group() -> None:
    originals, rng = kinds("cloud", 1200, seed=5), np.random.default_rng(6)
    made = np.repeat(originals[:10], 8, axis=0) + 0.1 * rng.standard_normal((80, 64))
    groups = find_copies(np.concatenate([originals, made]).astype(np.float32)).groups
    assert sorted(groups) == [[i, *range(1200 + 8 * i, 1208 + 8 * i)] for i in range(10)]


def plain_groups(num: int, linked: NDArray[np.bool_]) -> list[list[int]]:
    """The transitive closure by Warshall's algorithm."""
    reach = linked | np.eye(num, dtype=np.bool_)
    for k in range(num):
        reach |= reach[:, k : k + 1] & reach[k : k + 1]
    groups = {tuple(np.flatnonzero(row).tolist()) for row in reach}
    return sorted((list(g) for g in groups if len(g) > 1), key=lambda g: (-len(g), g[0]))


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_transitive_closure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, 60, (25 + 5 * seed, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    linked = np.zeros((60, 60), dtype=np.bool_)
    linked[pairs[:, 0], pairs[:, 1]] = linked[pairs[:, 1], pairs[:, 0]] = True
    assert connected((int(a), int(b)) for a, b in pairs) == plain_groups(60, linked)


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_pairs_are_all_pairs_however_many_neighbours(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_ROWS_AT_A_TIME", 7)
    base = np.random.default_rng(0).standard_normal((6, 8))
    vectors = unit(np.repeat(base, 20, axis=0) + 0.3 * np.random.default_rng(1).standard_normal((120, 8)))
    similarity = vectors @ vectors.T
    wanted = {(a, b) for a in range(120) for b in range(a + 1, 120) if similarity[a, b] >= threshold}
    limits = np.full(120, threshold, dtype=np.float32)
    found = similar_pairs(vectors, neighbours(vectors, 5), limits)  # far fewer than there are copies
    assert {(a, b) for a, b, _ in found} == wanted
    assert all(abs(s - similarity[a, b]) < 1e-5 for a, b, s in found)


def test_neighbours_leave_the_image_itself_out() -> None:
    vectors = unit(np.random.default_rng(0).standard_normal((50, 8)))
    vectors[10:20] = vectors[0]  # more that are the same than neighbours
    found = neighbours(vectors, 4)
    assert not (found.rows == np.arange(50)[:, None])[20:].any()
    assert np.allclose(found.similarities[:1], 1.0, atol=1e-6)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -2)
    assert np.allclose(found.similarities, -np.sort(-similarity, axis=1)[:, :4], atol=1e-6)


def test_images_known_to_be_the_same_are_grouped_whatever_their_features() -> None:
    vectors = kinds("cloud", 200, seed=7).astype(np.float32)
    firsts = np.arange(200)
    firsts[[50, 60]] = 3
    found = find_copies(vectors, firsts=firsts)
    assert found.groups == [[3, 50, 60]]
    assert found.similarity == {3: 1.0, 50: 1.0, 60: 1.0}


def test_few_images_have_a_fixed_threshold() -> None:
    vectors = np.abs(kinds("cloud", 20, seed=8)).astype(np.float32)
    vectors[7] = 1.01 * vectors[2]
    found = find_copies(vectors)
    assert (found.threshold.value, found.groups) == (0.95, [[2, 7]])
    assert "too few" in found.threshold.reason
    assert find_copies(vectors[:1]).groups == []


def test_a_given_threshold_is_the_same_for_all() -> None:
    vectors = kinds("clusters", 150, seed=9).astype(np.float32)
    unit_vectors = comparable(vectors)
    similarity = unit_vectors @ unit_vectors.T
    linked = (similarity >= 0.8) & ~np.eye(150, dtype=np.bool_)
    assert find_copies(vectors, 0.8).groups == plain_groups(150, linked)


def test_the_parts_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = kinds("densities", 1100, seed=10).astype(np.float32)
    whole = comparable(vectors)
    monkeypatch.setattr("carp.similarity.vectors._BYTES_AT_A_TIME", 4 * 64 * 37)
    parted = comparable(vectors)
    assert np.allclose(whole @ whole[:50].T, parted @ parted[:50].T, atol=1e-4)


def test_the_same_image_everywhere_is_no_division_by_zero() -> None:
    similarities = np.ones((200, 48), dtype=np.float32)
    assert choose_threshold(similarities).value is None


def spacings(count: int, seed: int, spread: float) -> NDArray[np.float64]:
    """Nearest neighbours [count, 48] as different images have them: the j-th exceeds the next by β / j on average.

    The β of an image is 1 divided by a Gamma variable of mean 1 and this deviation.
    """
    rng = np.random.default_rng(seed)
    beta = 1.0 / (rng.gamma(1 / spread**2, spread**2, count) if spread else np.ones(count))
    gaps = rng.exponential(size=(count, copies.FAR - 1)) / np.arange(1, copies.FAR)
    from_below = np.cumsum(gaps[:, ::-1], axis=1)[:, ::-1] * beta[:, None]
    return np.concatenate([from_below, np.zeros((count, 1))], axis=1)


@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("margin", [5.0, 7.0, 9.0])
def test_as_many_come_near_by_chance_as_expected(spread: float, margin: float) -> None:
    """400,000 images without copies, whose β are the same or differ by a tenth."""
    a = spacings(400_000, seed=int(10 * margin), spread=spread)
    observed = int((a[:, 0] - a[:, copies.NEAR - 1] >= margin).sum())
    expected = copies.expected_by_chance(a, margin)
    noise = 3 * expected**0.5
    assert observed <= expected + noise
    if spread:  # as much as `_PRIOR` assumes
        assert observed >= 0.97 * expected - noise
        with_one_beta = len(a) * (1 - (1 - np.exp(-margin)) ** 15)
        assert with_one_beta < observed - noise


@pytest.mark.parametrize("name", ["cloud", "flat", "clusters", "densities"])
def test_no_more_come_near_by_chance_than_expected(name: str) -> None:
    found = neighbours(comparable(kinds(name, 2000, seed=11).astype(np.float32)), copies.FAR)
    a = np.arctanh(found.similarities.astype(np.float64))
    excess = a[:, 0] - a[:, copies.NEAR - 1]
    for share in (0.1, 0.01):
        margin = float(np.quantile(excess, 1 - share))
        assert copies.expected_by_chance(a, margin) >= share * len(a)
