"""Images that the views do not suit are noticed; a few that cannot be read are not in the way."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from carp.config import Config
from carp.images.inspect.image_size import advice
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource


def folder(path: Path, *sizes: tuple[int, int]) -> FolderSource:
    path.mkdir()
    for i, size in enumerate(sizes):
        Image.new("RGB", size).save(path / f"{i:03d}.png")
    return FolderSource(path)


@pytest.mark.parametrize(
    ("width", "height", "global_size", "expected"),
    [
        (32, 32, 224, "images are 32×32 and global_size is 224: consider --recipe small-images global_size=32."),
        (64, 80, 160, "images are 64×80 and global_size is 160: consider --recipe small-images global_size=64."),
        (5, 5, 16, "images are 5×5 and global_size is 16: consider --recipe small-images global_size=8."),
        (100, 90, 224, "images are 100×90 and global_size is 224: consider global_size=90."),
        (640, 480, 32, "images are 640×480 and global_size is 32: most detail is lost; consider --recipe folder."),
        (256, 300, 64, "images are 256×300 and global_size is 64: most detail is lost; consider --recipe folder."),
    ],
)
def test_images_and_views_that_do_not_fit(
    tmp_path: Path, width: int, height: int, global_size: int, expected: str
) -> None:
    config = Config(global_size=global_size)
    assert advice(folder(tmp_path / "images", (width, height)), config) == expected
    assert advice(ArraySource(np.zeros((1, height, width, 3), dtype=np.uint8)), config) == expected


@pytest.mark.parametrize(("side", "global_size"), [(32, 32), (33, 64), (120, 32), (81, 160), (2000, 160), (96, 64)])
def test_images_and_views_that_fit(tmp_path: Path, side: int, global_size: int) -> None:
    assert advice(folder(tmp_path / "images", (side, side)), Config(global_size=global_size)) is None


def test_the_middle_of_different_sizes_counts(tmp_path: Path) -> None:
    sizes = [(32, 32)] * 2 + [(800, 600)] * 3 + [(4000, 3000)] * 2
    found = advice(folder(tmp_path / "images", *sizes), Config(global_size=32))
    assert found is not None
    assert found.startswith("images are about 800×600 and")


def test_files_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    source = folder(tmp_path / "images", *[(32, 32)] * 6)
    for i, content in enumerate((b"", b"no image", b"\x89PNG\r\n\x1a\n")):
        (source.root / f"{i:03d}.png").write_bytes(content)
    (source.root / "003.png").unlink()
    found = advice(source, Config())
    assert found is not None
    assert found.startswith("images are 32×32 and")
    for path in source.root.iterdir():
        path.write_bytes(b"")
    assert advice(source, Config()) is None


def test_few_images_of_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path / "images", *[(32, 32)] * 50)
    opened: list[int] = []
    real = source.fetch
    monkeypatch.setattr(source, "fetch", lambda index: opened.append(index) or real(index))
    advice(source, Config())
    first, opened[:] = list(opened), []
    advice(source, Config())
    assert opened == first
    assert len(first) == 16


def test_a_run_from_weights_is_advised_to_use_smaller_views_and_keeps_its_recipe(tmp_path: Path) -> None:
    found = advice(folder(tmp_path / "images", (42, 41)), Config(global_size=224), started=True)
    assert found is not None
    assert "global_size=64" in found
    assert "8% of the time" in found
    assert "recipe" not in found
