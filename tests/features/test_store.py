"""Features on disk: the same as in memory, found again, continued to the bit, and never mixed up."""

import csv
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from carp.encoders.frozen_encoder import Encoder
from carp.encoders.layers import NamedLayer, weights_hash
from carp.errors import ConfigError, DataError, ModelError
from carp.features import part_file
from carp.features.extract import FeatureBatch, evaluation_crop, extract, feature_batches
from carp.features.filling import fill_store
from carp.features.store import is_store, open_store
from carp.features.tabular import write_csv, write_parquet
from carp.images.identity import describe_data
from carp.images.source import Source
from carp.images.sources.folder import FolderSource
from tests.helpers import tiny_images, write_images

CPU = torch.device("cpu")
BATCH = 4


class Colours(nn.Module):
    """Six features: mean and deviation of every colour."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.factor * torch.cat([images.mean(dim=(2, 3)), images.std(dim=(2, 3))], dim=1)


def encoder(factor: float = 1.0, size: int = 32) -> Encoder:
    return Encoder(Colours(factor), size=size, device=CPU, name="colours")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """30 images in three classes, of which three cannot be read: one at the start of a batch, two at the end."""
    folder = write_images(tmp_path / "images", tiny_images(30), classes=3)
    for index in (8, 28, 29):
        sorted(folder.glob("*/*.png"))[index].write_bytes(b"")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_store_holds_what_extraction_gives(images: Path, tmp_path: Path) -> None:
    source, done = FolderSource(images), []
    store = encoder().store(source, tmp_path / "store", batch_size=BATCH, progress=lambda *at: done.append(at))
    expected = extract(Colours(), source, size=32, device=CPU, batch_size=BATCH)
    assert done[-1] == (30, 30)
    np.testing.assert_array_equal(store.features, expected.features)
    assert isinstance(store.features, np.memmap)
    assert store.labels is not None
    assert source.labels is not None
    np.testing.assert_array_equal(store.labels, source.labels[expected.indices])
    assert list(store.places()) == [source.place(int(i)) for i in expected.indices]
    assert [bad.index for bad in store.unreadable] == [8, 28, 29]
    assert store.classes == source.classes
    assert store.origin.data == describe_data(source)
    assert store.origin.data["images"] == 30
    assert sorted(contents(tmp_path / "store")) == ["features.npy", "labels.npy", "places.jsonl", "store.json"]


def test_a_whole_store_is_opened_and_nothing_is_extracted(images: Path, tmp_path: Path) -> None:
    source = FolderSource(images)
    first = encoder().store(source, tmp_path / "store")

    def fail(_: Source) -> Iterator[object]:
        pytest.fail("something was extracted")
        yield

    again = fill_store(first.folder, first.origin, source, fail, batch_size=256)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.features, first.features)


def test_images_without_labels_have_none_in_the_store(tmp_path: Path) -> None:
    store = encoder().store(FolderSource(write_images(tmp_path / "flat", tiny_images(5))), tmp_path / "store")
    assert store.labels is None
    assert len(store.features) == 5


def test_a_store_of_something_else_is_refused_with_what_differs(images: Path, tmp_path: Path) -> None:
    source, folder = FolderSource(images), tmp_path / "store"
    encoder().store(source, folder)
    with pytest.raises(DataError, match=r"of colours \(weights, layer encoder\), weights \w{8}, not colours \(w"):
        encoder(2.0).store(source, folder)
    with pytest.raises(DataError, match="with size 32, not 16"):
        encoder(size=16).store(source, folder)
    with pytest.raises(DataError, match="with precision fp32, not bf16"):
        encoder().store(source, folder, precision="bf16")
    with pytest.raises(ConfigError, match="precision must be fp32 or bf16, received 'half'"):
        encoder().store(source, folder, precision="half")  # type: ignore[arg-type]
    other = FolderSource(write_images(tmp_path / "other", tiny_images(5)))
    with pytest.raises(DataError, match=f"of the 30 images {images}, not the 5 images {tmp_path / 'other'}"):
        encoder().store(other, folder)


def test_files_with_the_same_names_and_sizes_are_told_apart_by_their_content(tmp_path: Path) -> None:
    one, other = (
        FolderSource(write_images(tmp_path / name, tiny_images(5, seed=seed), suffix=".bmp"))
        for seed, name in enumerate(("one", "other"))
    )
    assert one.fingerprint == other.fingerprint
    store = encoder().store(one, tmp_path / "store")
    with pytest.raises(DataError, match=f"of the 5 images {one.root}, not the 5 images {other.root}"):
        encoder().store(other, tmp_path / "store")
    moved = FolderSource(one.root.rename(tmp_path / "moved"))
    assert encoder().store(moved, tmp_path / "store").origin == store.origin


def test_an_extraction_is_not_resumed_with_other_files_of_the_same_names_and_sizes(tmp_path: Path) -> None:
    folders = [write_images(tmp_path / str(seed), tiny_images(8, seed=seed), suffix=".bmp") for seed in range(2)]
    one, other = map(FolderSource, folders)
    origin = encoder().origin(one)

    def stops_early(source: Source) -> Iterator[FeatureBatch]:
        yield next(feature_batches(Colours(), source, size=32, device=CPU, batch_size=BATCH))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_store(tmp_path / "store", origin, one, stops_early, batch_size=BATCH)
    found = encoder().store(other, tmp_path / "store", batch_size=BATCH)
    np.testing.assert_array_equal(found.features, encoder().embed(folders[1], batch_size=BATCH))


def test_features_of_an_older_transform_are_neither_found_nor_mixed(images: Path, tmp_path: Path) -> None:
    source, folder = FolderSource(images), tmp_path / "store"
    store = encoder().store(source, folder)
    current = store.origin.transform["transform"]
    read = json.loads((folder / "store.json").read_text())
    del read["origin"]["transform"]["transform"], read["sha256"], read["files"]  # as the first version wrote it
    (folder / "store.json").write_text(json.dumps(read))
    old = open_store(folder)
    assert len(old.features) == 27
    assert old.origin.key() != store.origin.key()
    with pytest.raises(DataError, match=f"with version 1 of the transform, not {current}"):
        encoder().store(source, folder)


def test_a_folder_with_other_files_and_a_file_are_refused_untouched(images: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(DataError, match=r"other files \(notes.txt\)"):
        encoder().store(FolderSource(images), tmp_path / "mine")
    with pytest.raises(DataError, match="is a file"):
        encoder().store(FolderSource(images), tmp_path / "mine" / "notes.txt")
    assert contents(tmp_path / "mine") == {"notes.txt": b"keep"}


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": 1, "origin": {}}'])
def test_a_damaged_manifest_is_told(images: Path, tmp_path: Path, text: str) -> None:
    folder = encoder().store(FolderSource(images), tmp_path / "store").folder
    (folder / "store.json").write_text(text)
    with pytest.raises(DataError, match=r"store.json is damaged .* embed again"):
        open_store(folder)


def test_damaged_features_and_another_schema_are_told(images: Path, tmp_path: Path) -> None:
    folder = encoder().store(FolderSource(images), tmp_path / "store").folder
    (folder / "features.npy").write_bytes((folder / "features.npy").read_bytes()[:200])
    with pytest.raises(DataError, match=r"features.npy is damaged: it has 200 bytes.* embed again"):
        _ = open_store(folder).features
    manifest = json.loads((folder / "store.json").read_text())
    (folder / "store.json").write_text(json.dumps({**manifest, "schema": 9}))
    with pytest.raises(DataError, match=r"schema 9.*schema 1.*embed again"):
        open_store(folder)
    with pytest.raises(DataError, match="no features"):
        open_store(tmp_path)


def test_images_none_of_which_can_be_read(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(3))
    for path in folder.iterdir():
        path.write_bytes(b"")
    for _ in range(2):  # the failure leaves nothing that a second try would take for features
        with pytest.raises(DataError, match="none of the 3 images"):
            encoder().store(FolderSource(folder), tmp_path / "store")


def extract_slowly(images: Path, folder: Path) -> None:
    """What a process does that is to be killed: a note after every batch."""
    part_file._SECONDS_BETWEEN_NOTES = 0.0
    made = encoder()
    fast = made.module.forward
    made.module.forward = lambda images: (time.sleep(0.02), fast(images))[1]  # type: ignore[method-assign]
    made.store(FolderSource(images), folder, batch_size=BATCH)


def start(images: Path, folder: Path) -> "multiprocessing.process.BaseProcess":
    child = multiprocessing.get_context("fork").Process(target=extract_slowly, args=(images, folder))
    child.start()
    return child


def test_killed_extractions_continue_to_the_same_bytes(images: Path, tmp_path: Path) -> None:
    whole = encoder().store(FolderSource(images), tmp_path / "whole", batch_size=BATCH).folder
    folder, positions = tmp_path / "killed", []
    for wanted in (1, 3, 5):  # batches
        child = start(images, folder)
        note = folder / "part-0-of-1.json"
        while not (note.exists() and json.loads(note.read_text())["done"] >= wanted * BATCH):
            assert child.is_alive(), "it ended by itself"
            time.sleep(0.002)
        child.kill()
        child.join()
        positions.append(json.loads(note.read_text())["done"])
        assert not is_store(folder)
    assert positions == sorted(set(positions)), "a later process did not go on where the one before was"
    encoder().store(FolderSource(images), folder, batch_size=BATCH)
    assert contents(folder) == contents(whole)


def test_what_was_written_after_the_last_note_is_not_trusted(images: Path, tmp_path: Path) -> None:
    whole = encoder().store(FolderSource(images), tmp_path / "whole", batch_size=BATCH).folder
    folder = tmp_path / "torn"
    folder.mkdir()
    (folder / "part-0-of-1.bin").write_bytes(os.urandom(333))
    (folder / "part-0-of-1.json").write_text('{"key": "of other features"}')
    encoder().store(FolderSource(images), folder, batch_size=BATCH)
    assert contents(folder) == contents(whole)


def test_two_processes_do_not_write_one_store(images: Path, tmp_path: Path) -> None:
    child = start(images, tmp_path / "store")
    try:
        while not (tmp_path / "store" / "part-0-of-1.json").exists():
            assert child.is_alive()
            time.sleep(0.002)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        with pytest.raises(DataError, match="another process is writing features"):
            encoder().store(FolderSource(images), tmp_path / "store", batch_size=BATCH)
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.join()
    assert child.exitcode == 0
    assert is_store(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 5])
def test_any_number_of_processes_writes_the_same_store(images: Path, tmp_path: Path, processes: int) -> None:
    whole = encoder().store(FolderSource(images), tmp_path / "whole", batch_size=BATCH).folder
    parted = tmp_path / "parted"
    call = f"from tests.features.test_store import *; extract_slowly(Path({str(images)!r}), Path({str(parted)!r}))"
    (tmp_path / "child.py").write_text(call)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    subprocess.run(
        [*command, tmp_path / "child.py"],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
    )
    assert contents(parted) == contents(whole)


def test_csv_and_parquet_hold_the_same_numbers(images: Path, tmp_path: Path) -> None:
    store = encoder().store(FolderSource(images), tmp_path / "store")
    with write_csv(store).open(newline="") as file:
        head, *rows = list(csv.reader(file))
    assert head == ["path", "label", *(f"f{i}" for i in range(6))]
    assert [row[0] for row in rows] == list(store.places())
    assert {row[1] for row in rows} == {"class-0", "class-1", "class-2"}
    np.testing.assert_array_equal(np.array([row[2:] for row in rows], dtype=np.float32), store.features)
    table = pq.read_table(write_parquet(store))
    assert table["path"].to_pylist() == list(store.places())
    assert table["label"].to_pylist() == [[row[1]] for row in rows]
    np.testing.assert_array_equal(np.array(table["features"].to_pylist(), dtype=np.float32), store.features)
    assert not list(store.folder.glob("*.unfinished"))


def test_several_labels_are_written_by_name(images: Path, tmp_path: Path) -> None:
    store = encoder().store(FolderSource(images), tmp_path / "store")
    shown = np.zeros((27, 3), dtype=np.int64)
    shown[0, [0, 2]] = 1
    np.save(store.folder / "labels.npy", shown)
    again = replace(store)
    assert write_csv(again).read_text().splitlines()[1].split(",")[1] == "class-0;class-2"
    assert pq.read_table(write_parquet(again))["label"].to_pylist()[:2] == [["class-0", "class-2"], []]


def test_a_layer_by_name_is_averaged_over_places() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(NamedLayer(network, "1")(x), network[0](x).relu().mean(dim=(2, 3)))
    torch.testing.assert_close(NamedLayer(network, "3")(x), network(x))
    with pytest.raises(ModelError, match=r"no layer 'layr'.* Layers: encoder, projector, 0, 1, 2, 3"):
        NamedLayer(network, "layr")


def test_the_hash_of_weights_sees_every_weight_and_the_strides() -> None:
    torch.manual_seed(0)
    one, other = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, stride=2)
    other.load_state_dict(one.state_dict())
    assert weights_hash(one) != weights_hash(other)
    before = weights_hash(one)
    assert before == weights_hash(one)
    with torch.no_grad():
        one.bias[0] += 1e-6
    assert weights_hash(one) != before


def test_images_are_scaled_and_cut_as_asked() -> None:
    pixels = np.zeros((96, 192, 3), dtype=np.uint8)
    pixels[24:72, 72:120] = 255  # the middle
    assert evaluation_crop(pixels, 48, 96).min() == 255
    assert 0.2 < (evaluation_crop(pixels, 48, 48) > 127).mean() < 0.3
    assert evaluation_crop(pixels, 224).shape == (224, 224, 3)
    with pytest.raises(ConfigError, match=r"16.*resize.*32.*size"):
        Encoder(Colours(), size=32, resize=16, device=CPU)
