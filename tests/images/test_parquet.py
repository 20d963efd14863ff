"""Parquet files: columns as `datasets` writes them and others, labels, many row groups, threads."""

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from carp.errors import DataError, MissingExtraError, UnreadableImageError
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources import parquet
from carp.images.sources.parquet import ParquetSource
from tests.helpers import tiny_images
from tests.images.test_tar_shards import png

pa = pytest.importorskip("pyarrow", reason="needs the extra [parquet]")
pq = pytest.importorskip("pyarrow.parquet")

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path, columns, *, features=None, group=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=group, write_statistics=False)
    return path


def structs(images):
    return pa.array([{"bytes": png(image), "path": None} for image in images], type=IMAGE)


def write_parts(folder, images, per_file=7, group=3):
    for start in range(0, len(images), per_file):
        part = images[start : start + per_file]
        labels = [(start + i) % 3 for i in range(len(part))]
        features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}
        path = folder / f"train-{start // per_file:05d}-of-00003.parquet"
        write(path, {"image": structs(part), "label": labels}, features=features, group=group)
    return folder


@pytest.fixture
def parts(tmp_path):
    return write_parts(tmp_path / "parts", tiny_images(17))


def test_rows_come_in_the_order_of_files_with_the_names_of_the_classes(parts):
    source = open_source(parts)
    assert isinstance(source, ParquetSource)
    assert len(source) == 17
    assert source.groups.tolist() == [3, 3, 1, 3, 3, 1, 3]
    assert source.classes == ("cat", "dog", "emu")
    assert source.labels.tolist() == [i % 3 for i in range(17)]
    for i in np.random.default_rng(0).permutation(17):
        assert np.array_equal(read(source, int(i)), tiny_images(17)[i])
    assert source.place(8) == f"{parts / 'train-00001-of-00003.parquet'}: row 1"


def test_files_are_named_in_several_ways(parts):
    every = open_source(parts).fingerprint
    for pattern in ("train-*.parquet", "train-{00000..00002}-of-00003.parquet"):
        assert open_source(parts / pattern).fingerprint == every
    assert len(open_source(parts / "train-00002-of-00003.parquet")) == 3


def test_what_datasets_writes_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="a check against the library itself")
    from PIL import Image

    images = tiny_images(6)
    features = datasets.Features({"img": datasets.Image(), "fine": datasets.ClassLabel(names=["a", "b"])})
    rows = {"img": [Image.fromarray(image) for image in images], "fine": [0, 1, 1, 0, 1, 0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "d.parquet")
    source = open_source(tmp_path / "d.parquet")
    assert source.classes == ("a", "b")
    assert source.labels.tolist() == [0, 1, 1, 0, 1, 0]
    assert all(np.array_equal(read(source, i), images[i]) for i in range(6))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_plain_bytes_and_labels_of_words_or_numbers(tmp_path, kind):
    images = tiny_images(4)
    bytes_ = pa.array([png(image) for image in images], type=kind)
    words = open_source(write(tmp_path / "a.parquet", {"picture": bytes_, "label": ["x", "y", "x", "z"]}))
    assert words.classes == ("x", "y", "z")
    assert words.labels.tolist() == [0, 1, 0, 2]
    numbers = open_source(write(tmp_path / "b.parquet", {"id": [1, 2, 3, 4], "cls": [10, 9, 9, 10], "picture": bytes_}))
    assert numbers.classes == ("9", "10")
    assert all(np.array_equal(read(numbers, i), images[i]) for i in range(4))


@pytest.mark.parametrize("labels", [None, [0, None, 1, 0], [0.5, 1.0, 2.0, 3.0], [-1, -1, -1, -1]])
def test_labels_that_are_none(tmp_path, labels):
    features = {"label": {"_type": "ClassLabel", "names": ["a", "b"]}}
    columns = {"image": structs(tiny_images(4)), **({} if labels is None else {"label": labels})}
    source = open_source(write(tmp_path / "a.parquet", columns, features=features))
    assert source.labels is None
    assert source.classes == ()


def test_rows_without_bytes_are_unreadable_images(tmp_path):
    rows = [{"bytes": None, "path": "somewhere.png"}, None, {"bytes": png(tiny_images(1)[0]), "path": None}]
    source = open_source(write(tmp_path / "a.parquet", {"image": pa.array(rows, type=IMAGE)}))
    for i in range(2):
        with pytest.raises(UnreadableImageError, match=rf"a\.parquet: row {i}: the row has no bytes"):
            source.fetch(i)
    assert read(source, 2).shape == (32, 32, 3)


def test_files_that_cannot_be_used_are_named(tmp_path, parts):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    write(tmp_path / "texts.parquet", {"text": ["a"], "label": [1]})
    write(tmp_path / "two.parquet", {"a": [b"1"], "b": [b"2"]})
    write(tmp_path / "none.parquet", {"image": structs(tiny_images(0))})
    for name, message in [
        ("broken.parquet", "cannot read the Parquet file .*broken.parquet"),
        ("texts.parquet", "texts.parquet has no column of encoded images among text, label: .*'image'"),
        ("two.parquet", "two.parquet has several columns of bytes among a, b: .*'image'"),
        ("none.parquet", "there are no images in .*none.parquet"),
    ]:
        with pytest.raises(DataError, match=message) as raised:
            open_source(tmp_path / name)
        assert "\n" not in str(raised.value)
    write(parts / "z.parquet", {"image": structs(tiny_images(1))})
    with pytest.raises(DataError, match=r"z\.parquet has no column 'label'.* its columns are image"):
        open_source(parts)


def test_a_file_that_goes_makes_its_images_unreadable(parts):
    source = open_source(parts)
    (parts / "train-00001-of-00003.parquet").unlink()
    with pytest.raises(UnreadableImageError, match=r"train-00001-of-00003\.parquet: row 0"):
        source.fetch(7)
    assert read(source, 0).shape == (32, 32, 3)


def test_without_pyarrow_the_extra_is_named(parts, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'carp-ssl\[parquet\]'"):
        open_source(parts)


def test_few_row_groups_are_held_at_a_time(parts, monkeypatch):
    monkeypatch.setattr(parquet, "_HELD_BYTES", 25_000)  # two groups of three images of about 3 kB
    source = open_source(parts)
    for i in np.random.default_rng(0).permutation(17):
        assert np.array_equal(read(source, int(i)), tiny_images(17)[i])
        assert 1 <= len(source._held._groups) <= 3
        assert source._held._bytes == sum(group.nbytes for group in source._held._groups.values())


def test_the_window_is_what_a_process_can_hold(parts, monkeypatch):
    every = open_source(parts)
    assert every.window >= len(every)
    monkeypatch.setattr(parquet, "_WINDOW_BYTES", 20_000)
    assert 4 <= open_source(parts).window <= 8


def test_threads_and_copies_read_the_same(parts):
    source, images = open_source(parts), tiny_images(17)
    copy = pickle.loads(pickle.dumps(source))  # noqa: TID251
    order = list(range(17)) * 10
    for one in (source, copy):
        with ThreadPoolExecutor(8) as pool:
            for i, pixels in zip(order, pool.map(lambda i: read(one, i), order), strict=True):  # noqa: B023
                assert np.array_equal(pixels, images[i])


def test_the_fingerprint_is_that_of_the_contents(parts, tmp_path):
    one = open_source(parts).fingerprint
    assert open_source(write_parts(tmp_path / "copy", tiny_images(17))).fingerprint == one
    assert open_source(write_parts(tmp_path / "less", tiny_images(16))).fingerprint != one
