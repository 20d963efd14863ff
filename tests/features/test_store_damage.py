"""A store is never trusted beyond what was written: damage, interrupted filling, stores of older versions."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from carp.errors import DataError
from carp.features import filling, part_file
from carp.features.store import is_store, open_store, write_manifest
from carp.files import digests as files
from carp.images.sources.array import ArraySource
from carp.images.sources.folder import FolderSource
from tests.features.test_store import BATCH, contents, encoder
from tests.helpers import tiny_images, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_images(tmp_path_factory.mktemp("images"), tiny_images(30), classes=3)
    sorted(folder.glob("*/*.png"))[8].write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete store; copy it before you change it."""
    return encoder().store(FolderSource(images), tmp_path_factory.mktemp("whole") / "store", batch_size=BATCH).folder


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def one_line(error: pytest.ExceptionInfo[DataError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["features.npy", "labels.npy", "places.jsonl", "store.json"])
def test_a_flipped_bit_anywhere_is_noticed(store: Path, name: str) -> None:
    path = store / name
    content = path.read_bytes()
    places = np.random.default_rng(0).integers(0, len(content), 60).tolist()
    for place in [0, *places, len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        if name == "store.json" and _same_json(damaged, content):
            continue
        with pytest.raises(DataError) as error:
            open_store(store)
        assert name in one_line(error), place
    path.write_bytes(content)
    open_store(store)


def _same_json(damaged: bytes, content: bytes) -> bool:
    """Whether only white space changed."""
    try:
        return json.loads(damaged) == json.loads(content)
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["features.npy", "labels.npy", "places.jsonl"])
def test_a_file_that_is_cut_extended_or_missing_is_named(store: Path, name: str) -> None:
    content = (store / name).read_bytes()
    for changed in (content[:-1], content + b"\0", b""):
        (store / name).write_bytes(changed)
        with pytest.raises(DataError, match=rf"{name} is damaged|cannot read .*{name}") as error:
            open_store(store)
        assert "embed again" in one_line(error)
    (store / name).unlink()
    with pytest.raises(DataError, match=name):
        open_store(store)


def test_large_files_are_verified_by_a_sample_and_by_carp_check_whole(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_CHUNK", 16)
    write_manifest(replace(open_store(store), files={}))
    opened = open_store(store)
    chunks = len(opened.files["features.npy"]["sha256"])
    assert chunks > 3 * files._QUICK
    path, sampled = store / "features.npy", set(files._spread(chunks, files._QUICK))
    assert {0, chunks - 1} <= sampled
    content = path.read_bytes()
    for number in range(8, chunks):  # the header is read, too
        damaged = bytearray(content)
        damaged[16 * number] ^= 1
        path.write_bytes(damaged)
        assert (opened.damage("features.npy") is not None) == (number in sampled)
        assert opened.damage("features.npy", everything=True) is not None


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("features.npy", np.zeros((28, 6), np.float32), "28×6 float32, expected 29"),
        ("features.npy", np.zeros((29, 6), np.float64), "29×6 float64, expected 29×F float32"),
        ("features.npy", np.zeros(29, np.float32), "expected 29×F float32"),
        ("labels.npy", np.zeros(28, np.int64), "28 int64, expected 29"),
        ("labels.npy", np.zeros(29, np.float64), "29 float64, expected 29"),
        ("labels.npy", np.zeros((29, 4), np.int64), "29×4 int64, expected 29 or 29×3"),
        ("labels.npy", np.full(29, 3, np.int64), "from 3 to 3, expected -1 to 2"),
        ("labels.npy", np.full(29, -2, np.int64), "from -2 to -2, expected -1 to 2"),
        ("labels.npy", np.full((29, 3), 2, np.int64), "from 2 to 2, expected -1 to 1"),
    ],
)
def test_shapes_types_and_ranges_are_one_clear_line_even_without_digests(
    store: Path, name: str, array: np.ndarray, expected: str
) -> None:
    manifest = json.loads((store / "store.json").read_text())
    del manifest["files"], manifest["sha256"]
    (store / "store.json").write_text(json.dumps(manifest))
    np.save(store / name, array)
    with pytest.raises(DataError, match=name) as error:
        open_store(store)
    assert expected in one_line(error)
    assert "embed again" in one_line(error)


def test_a_store_without_digests_still_opens(store: Path, images: Path, whole: Path) -> None:
    manifest = json.loads((store / "store.json").read_text())
    del manifest["files"], manifest["sha256"]
    (store / "store.json").write_text(json.dumps(manifest))
    opened = open_store(store)
    assert opened.files == {}
    np.testing.assert_array_equal(opened.features, open_store(whole).features)
    again = encoder().store(FolderSource(images), store, batch_size=BATCH)
    assert again.folder == store
    (store / "places.jsonl").write_text('"one"\n')
    with pytest.raises(DataError, match=r"places.jsonl is damaged: it names 1 images, expected 29"):
        open_store(store)


Stop = type("Stop", (BaseException,), {})


def interrupted(monkeypatch: pytest.MonkeyPatch, images: Path, folder: Path, place: str) -> None:
    """An extraction that ends at the first call of a function, as if it had been killed there."""

    def stop(*_args: object, **_kwargs: object) -> None:
        raise Stop

    owner, _, name = place.rpartition(".")
    with monkeypatch.context() as patch:
        patch.setattr({"filling": filling, "part_file": part_file}[owner], name, stop)
        with pytest.raises(Stop):
            encoder().store(FolderSource(images), folder, batch_size=BATCH)


def test_a_kill_between_the_new_name_and_the_manifest_keeps_the_features(
    images: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "killed"
    interrupted(monkeypatch, images, folder, "filling.write_manifest")
    assert (folder / "features.npy").exists()
    assert (folder / "part-0-of-1.json").exists()
    assert not is_store(folder)
    extracted = []
    encoder().store(FolderSource(images), folder, batch_size=BATCH, progress=lambda done, _all: extracted.append(done))
    assert extracted == [], "features that were complete were extracted again"
    assert contents(folder) == contents(whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda part: part.unlink(),
        lambda part: part.write_bytes(b""),
        lambda part: part.write_bytes(part.read_bytes()[:-1]),
        lambda part: part.write_bytes(bytes(part.stat().st_size)),
    ],
    ids=["missing", "empty", "cut", "zeros"],
)
def test_a_note_is_not_believed_beyond_the_bytes(
    images: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "killed"
    interrupted(monkeypatch, images, folder, "filling.join_parts")
    assert json.loads((folder / "part-0-of-1.json").read_text())["done"] == 30
    damage(folder / "part-0-of-1.bin")
    encoder().store(FolderSource(images), folder, batch_size=BATCH)
    assert contents(folder) == contents(whole)


def test_leftovers_of_our_own_never_lock_a_folder(images: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    for name in (".unfinished-store.json", ".unfinished-part-0-of-1.json", "part-1-of-2.bin", "part-1-of-2.json"):
        (folder / name).write_text("{")
    encoder().store(FolderSource(images), folder, batch_size=BATCH)
    assert contents(folder) == contents(whole)
    for name in (".unfinished-features.csv", "part-0-of-1.bin", "part-0-of-1.json"):  # killed after the manifest
        (folder / name).write_text("{")
    encoder().store(FolderSource(images), folder, batch_size=BATCH)
    assert contents(folder) == contents(whole)


def test_a_users_own_features_are_not_taken_for_ours(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "features.npy").write_bytes(b"mine")
    with pytest.raises(DataError, match=r"other files \(features.npy\)"):
        encoder().store(FolderSource(images), folder)
    assert contents(folder) == {"features.npy": b"mine"}


def test_labels_of_an_interrupted_attempt_do_not_pass_to_other_images(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "killed"
    interrupted(monkeypatch, images, folder, "filling.write_manifest")
    assert (folder / "labels.npy").exists()
    unlabelled = ArraySource(tiny_images(29, seed=1))
    store = encoder().store(unlabelled, folder, batch_size=BATCH)
    assert store.labels is None
    assert store.origin.data["images"] == len(store.features) == 29
