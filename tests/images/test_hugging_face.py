"""Objects of Hugging Face `datasets`, and the folders that they write: the same images and labels as elsewhere."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from carp.errors import DataError, UnreadableImageError
from carp.images.open_source import open_source
from carp.images.source import read
from tests.helpers import tiny_images
from tests.images.test_tar_shards import png

IMAGES = tiny_images(7)
LABELS = [0, 1, 2, 0, 1, 2, 0]
FEATURES = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"}}


def write_arrow_folder(folder: Path, *, rows_per_file: int = 4) -> Path:
    """What `Dataset.save_to_disk` writes: a stream of record batches per file, with the features in its metadata."""
    folder.mkdir(parents=True)
    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    about = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    schema = pa.schema({"image": image, "label": pa.int64()}, metadata=about)
    rows = [{"image": {"bytes": png(IMAGES[i]), "path": None}, "label": LABELS[i]} for i in range(len(LABELS))]
    starts = range(0, len(rows), rows_per_file)
    names = [f"data-{i:05d}-of-{len(starts):05d}.arrow" for i in range(len(starts))]
    for name, start in zip(names, starts, strict=True):
        table = pa.Table.from_pylist(rows[start : start + rows_per_file], schema=schema)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    (folder / "state.json").write_text(json.dumps(state))
    return folder


def assert_is_ours(source: Any) -> None:
    assert len(source) == len(IMAGES)
    assert source.labels.tolist() == LABELS
    assert source.classes == ("cat", "dog", "eel")
    assert all(np.array_equal(read(source, i), pixels) for i, pixels in enumerate(IMAGES))


def test_a_folder_of_save_to_disk_is_a_source(tmp_path: Path) -> None:
    folder = write_arrow_folder(tmp_path / "set" / "train")
    source = open_source(folder)
    assert_is_ours(source)
    assert_is_ours(copy.deepcopy(source))
    assert source.place(5) == f"{folder}: row 5"
    assert open_source(f"arrow:{folder}").fingerprint == source.fingerprint
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(DataError, match=r"has the splits train: give one of them, e\.g\. .*/set/train"):
        open_source(tmp_path / "set")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("{", "does not list the data files"),
        ('{"_data_files": [{"filename": "../../secret.arrow"}]}', "which is not in the folder"),
        ('{"_data_files": []}', "lists no files"),
        ('{"_data_files": [{"filename": "absent.arrow"}]}', r"absent\.arrow: No such file"),
        ('{"_data_files": [{"filename": "state.json"}]}', r"cannot read the Arrow file .*state\.json"),
    ],
)
def test_a_broken_folder_is_one_line(state: str, words: str, tmp_path: Path) -> None:
    folder = write_arrow_folder(tmp_path / "set")
    (folder / "state.json").write_text(state)
    with pytest.raises(DataError, match=words):
        open_source(folder)


class _Feature:
    """The description of a column, as an object of `datasets` has it."""

    def __init__(self, **about: Any) -> None:
        self.__dict__.update(about)


class FakeDataset:
    """The members of a `datasets.Dataset` that are used; it decodes images unless told otherwise."""

    def __init__(self, *, decode: bool = True, label: str = "label") -> None:
        image = type("Image", (_Feature,), {})(decode=decode)
        self.features = {"image": image, label: type("ClassLabel", (_Feature,), {})(names=["cat", "dog", "eel"])}
        self.decoded = 0

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return LABELS
        if self.features["image"].decode:
            self.decoded += 1
            return {"image": Image.fromarray(IMAGES[key]), "label": LABELS[key]}
        return {"image": {"bytes": png(IMAGES[key]), "path": None}, "label": LABELS[key]}

    def cast_column(self, _column: str, feature: Any) -> "FakeDataset":
        return FakeDataset(decode=feature.decode)


def test_an_object_with_features_is_a_source_whose_images_it_need_not_decode() -> None:
    dataset = FakeDataset()
    source = open_source(dataset)
    assert_is_ours(source)
    assert dataset.decoded == 0
    assert isinstance(source.fetch(0), bytes)
    assert_is_ours(open_source(FakeDataset(label="species")))


def test_a_dataset_without_images_is_one_line() -> None:
    dataset = FakeDataset()
    dataset.features = {"text": _Feature(), "label": _Feature()}
    with pytest.raises(DataError, match="no column of images among text, label"):
        open_source(dataset)


def test_a_row_without_bytes_is_an_unreadable_image(monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(FakeDataset(decode=False))
    monkeypatch.setattr(FakeDataset, "__getitem__", lambda _self, _key: {"image": None})
    with pytest.raises(UnreadableImageError, match="NoneType"):
        source.fetch(0)


def test_the_package_itself_gives_the_same(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "eel"])})
    rows = {"image": [{"bytes": png(pixels), "path": None} for pixels in IMAGES], "label": LABELS}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    assert_is_ours(open_source(dataset))
    dataset.save_to_disk(tmp_path / "own", num_shards=2)
    assert_is_ours(open_source(tmp_path / "own"))
    assert_is_ours(open_source(datasets.load_from_disk(str(write_arrow_folder(tmp_path / "ours")))))
    dataset.to_parquet(tmp_path / "own.parquet")
    assert_is_ours(open_source(tmp_path / "own.parquet"))
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "both")
    with pytest.raises(DataError, match="has the splits test, train"):
        open_source(tmp_path / "both")
