"""Settings that a run is warned about before it begins."""

from pathlib import Path

import pytest

from carp.console.progress import Display
from carp.training.preparation import open_for_training
from tests.helpers import tiny_images, write_images, write_recipe


@pytest.mark.parametrize(
    ("weight", "length", "warned"), [(3.0, None, True), (1.0, None, False), (3.0, 8.0, False), (0.0, None, False)]
)
def test_a_strong_koleo_without_a_length(
    weight: float, length: float | None, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = write_images(tmp_path / "images", tiny_images(16), classes=2)
    settings = {"koleo_weight": weight, "embedding_length": length, "embedding": 16}
    open_for_training(images, write_recipe(tmp_path / "tiny.yaml", **settings), {}, Display())
    said = capsys.readouterr()
    assert ("embedding_length, for example to 8, or a weight of at most 1." in said.out + said.err) == warned
