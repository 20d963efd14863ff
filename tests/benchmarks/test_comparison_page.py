"""The page of the comparison in the documentation."""

from pathlib import Path

import pytest

pytest.importorskip("lightly", reason="the extra `bench` is not installed")

from benchmarks.compare.page import ranges_section


def test_the_page_in_the_documentation_has_the_ranges_of_the_code() -> None:
    assert ranges_section() in (Path(__file__).parents[2] / "docs/comparison.md").read_text()
