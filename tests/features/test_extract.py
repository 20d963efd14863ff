"""Images that cannot be read are left out of features, and labels stay with their images."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

import carp
from carp.errors import DataError, UnreadableImageError
from carp.features.extract import _batches, extract
from carp.images.loading.in_memory import hold_in_memory
from carp.images.loading.loader import normalise, one_ahead
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from tests.helpers import TINY, tiny_images, write_images, write_recipe

CPU = torch.device("cpu")
BICUBIC = transforms.InterpolationMode.BICUBIC
BAD = [4, 5, 6, 7, 20]  # a whole batch of four, and one more


class Mean(nn.Module):
    """Three features: the mean colour."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """24 images in three classes, five of them unreadable."""
    folder = write_images(tmp_path / "damaged", tiny_images(24), classes=3)
    for index, path in enumerate(sorted(folder.glob("*/*.png"))):
        if index in BAD:
            path.write_bytes(path.read_bytes()[: 40 * index - 160])
    return folder


def whole(tmp_path: Path) -> ArraySource:
    return hold_in_memory(FolderSource(write_images(tmp_path / "whole", tiny_images(24), classes=3)), 32)


@pytest.mark.parametrize("ready", [lambda s: s, lambda s: hold_in_memory(s, 32)], ids=["files", "held in memory"])
def test_features_are_those_of_the_readable_images(
    damaged: Path, tmp_path: Path, ready: Callable[[Source], Source]
) -> None:
    source, everything, done = ready(FolderSource(damaged)), whole(tmp_path), []
    good = [i for i in range(24) if i not in BAD]
    encoder = Mean().train()
    found = extract(encoder, source, size=32, device=CPU, batch_size=4, progress=lambda *at: done.append(at))
    assert encoder.training
    assert found.indices.tolist() == good
    assert [bad.index for bad in found.unreadable] == BAD
    expected = extract(Mean(), everything, size=32, device=CPU, batch_size=4)
    np.testing.assert_array_equal(found.features, expected.features[good])
    assert done[-1] == (24, 24)
    assert expected.note() is None
    first = sorted(damaged.glob("*/*.png"))[4]
    note = f"5 of 24 images of {damaged} cannot be read and are left out; the first is {first}: the file is empty."
    assert found.note() == note


@pytest.mark.parametrize("shape", [(45, 33), (20, 31), (32, 97)])
def test_images_held_in_memory_for_training_are_seen_as_in_evaluation(shape: tuple[int, int], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = FolderSource(write_images(tmp_path, rng.integers(0, 256, (3, *shape, 3), dtype=np.uint8)))
    from_files, held = (extract(nn.Flatten(), s, size=32, device=CPU) for s in (source, hold_in_memory(source, 32)))
    np.testing.assert_array_equal(from_files.features, held.features)
    seen = [transforms.CenterCrop(32)(transforms.Resize(32, BICUBIC)(Image.open(source.place(i)))) for i in range(3)]
    expected = normalise(torch.from_numpy(np.stack([np.array(x) for x in seen])).permute(0, 3, 1, 2), CPU)
    np.testing.assert_array_equal(held.features, expected.flatten(1).numpy())


def test_strict_extraction_and_a_source_without_any_readable_image_raise(damaged: Path) -> None:
    with pytest.raises(UnreadableImageError, match="the file is empty"):
        extract(Mean(), FolderSource(damaged), size=32, device=CPU, strict=True)
    for path in damaged.glob("*/*.png"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"^none of the 24 images .* can be read; the first is .*: the file is empty"):
        extract(Mean(), FolderSource(damaged), size=32, device=CPU)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return carp.train(tiny_images(), folder / "run", write_recipe(folder / "t.yaml", epochs=1), quiet=True).folder


def test_a_folder_is_embedded_without_its_bad_images_and_a_named_image_is_an_error(run: Path, damaged: Path) -> None:
    encoder, paths = carp.load(run, device="cpu"), sorted(damaged.glob("*/*.png"))
    with pytest.warns(UserWarning, match="5 of 24 images of .* cannot be read and are left out"):
        vectors = encoder.embed(damaged)
    good = [path for i, path in enumerate(paths) if i not in BAD]
    np.testing.assert_allclose(vectors, encoder.embed(good), rtol=1e-4, atol=1e-5)
    for images in (paths, paths[4], Image.open(paths[20])):
        with pytest.raises(UnreadableImageError, match="cannot read the image"):
            encoder.embed(images)


def test_a_list_is_embedded_as_its_images(run: Path, tmp_path: Path) -> None:
    paths = sorted(write_images(tmp_path / "images", tiny_images(3)).glob("*.png"))
    (tmp_path / "some.txt").write_text("".join(f"{path}\n" for path in paths))
    encoder = carp.load(run, device="cpu")
    np.testing.assert_allclose(encoder.embed(tmp_path / "some.txt"), encoder.embed(paths), rtol=1e-4, atol=1e-5)


def test_evaluation_leaves_bad_images_out_and_says_so_once(
    run: Path, damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(damaged, kept)
    for index, path in enumerate(sorted(kept.glob("*/*.png"))):
        if index in BAD:
            path.unlink()
    ours = carp.evaluate("knn", run, damaged, k=3, quiet=False)
    assert capsys.readouterr().err.count("warning: 5 of 24 images of") == 1
    assert ours.values == carp.evaluate("knn", run, kept, k=3).values
    with pytest.warns(UserWarning, match="5 of 24 images of .* are left out") as warned:
        ours = carp.evaluate("knn", run, kept, test=damaged, k=3)
    assert len(warned) == 1
    assert ours.data["left_out"] == {str(damaged): 5}
    assert ours.values == carp.evaluate("knn", run, kept, test=kept, k=3).values


@pytest.mark.parametrize("size", [32, 72], ids=["small images", "photographs"])
def test_validation_leaves_bad_images_out_and_says_so_once(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", **{**TINY, "epochs": 2, "global_size": size, "workers": 0})
    train = write_images(tmp_path / "train", tiny_images(32), classes=3)
    carp.train(train, tmp_path / "run", recipe, validation=str(damaged))
    assert len(re.findall("warning: validation: 5 of 24 images of", capsys.readouterr().err)) == 1
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = [line["knn_teacher"] for line in lines if "knn_teacher" in line]
    assert len(values) == 2
    assert all((19 * value) % 1 == pytest.approx(0, abs=1e-9) or (19 * value) % 1 > 1 - 1e-9 for value in values)


@pytest.mark.parametrize("size", [32, 72], ids=["small images", "photographs"])
def test_validation_images_of_which_none_can_be_read_are_found_before_training(
    damaged: Path, tmp_path: Path, size: int
) -> None:
    for path in damaged.glob("*/*.png"):
        path.write_bytes(b"")
    recipe = write_recipe(tmp_path / "tiny.yaml", **{**TINY, "global_size": size})
    with pytest.raises(DataError, match=r"^none of the 24 images .*damaged can be read"):
        carp.train(tiny_images(), tmp_path / "run", recipe, quiet=True, validation=str(damaged))
    assert not (tmp_path / "run" / "metrics.jsonl").read_text()


def test_batches_made_ahead_are_the_same(damaged: Path) -> None:
    source = FolderSource(damaged)
    ours, theirs = list(one_ahead(_batches(source, 32, 4))), list(_batches(source, 32, 4))
    assert len(ours) == 6
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.images, other.images)
        assert (one.indices, one.unreadable) == (other.indices, other.unreadable)
