"""A comparison of two methods that is finished; most tests look at a copy of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def small_methods() -> Iterator[None]:
    """Narrow projectors, so that a step takes milliseconds."""
    pytest.importorskip("lightly", reason="the extra `bench` is not installed")
    from benchmarks.compare.methods import find_method
    from benchmarks.compare.ranges import Choice

    from tests.benchmarks.compared import NAMES

    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            method = find_method(name)
            narrow = {"projector_hidden": Choice(16, 32, published=16)}
            patch.setattr(method, "search", {**method.search, **narrow})
        patch.setattr("benchmarks.compare.measures._LINEAR_EPOCHS", 2)
        patch.setattr("benchmarks.compare.measures._REDOS", 1)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small_methods: None) -> tuple[Path, Any]:
    """Return the folder of the comparisons and the watched test images of the one in it, `colours`."""
    from carp.console.progress import Display
    from tests.benchmarks.compared import NAMES, Watched, coloured, comparison

    out = tmp_path_factory.mktemp("compare")
    test = Watched(coloured(24, seed=1), out / "colours")
    assert comparison(out / "colours", test).run(NAMES, Display(quiet=True)) == 8 + 3
    return out, test
