"""Folders of images: what is found, in which order, with which labels; the index that is kept of them."""

import os
import pickle
import time

import numpy as np
import pytest
from PIL import Image

from carp.config import Config
from carp.errors import DataError, UnreadableImageError
from carp.images.loading.loader import PhotoLoader
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources import folder, folder_scan
from carp.images.sources.folder import FolderSource


def save(path, seed=0, mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return pixels


def test_a_flat_folder_has_images_in_the_order_of_their_names_and_no_labels(tmp_path):
    for i, name in enumerate(["b.png", "a.jpg", "c.webp"]):
        save(tmp_path / name, seed=i)
    source = FolderSource(tmp_path)
    assert list(source.paths) == ["a.jpg", "b.png", "c.webp"]
    assert source.labels is None
    assert source.classes == ()
    assert len(source) == 3


def test_sub_folders_are_classes_in_the_order_of_their_names(tmp_path):
    for name in ["dog/1.png", "cat/1.png", "cat/2.png", "emu/1.png"]:
        save(tmp_path / name)
    source = FolderSource(tmp_path)
    assert source.classes == ("cat", "dog", "emu")
    assert list(source.paths) == ["cat/1.png", "cat/2.png", "dog/1.png", "emu/1.png"]
    assert source.labels.tolist() == [0, 0, 1, 2]


def test_images_deeper_down_belong_to_the_class_of_the_top_folder(tmp_path):
    for name in ["cat/2021/may/1.png", "cat/2.png", "dog/deep/1.png"]:
        save(tmp_path / name)
    source = FolderSource(tmp_path)
    assert source.classes == ("cat", "dog")
    assert dict(zip(source.paths, source.labels.tolist(), strict=True)) == {
        "cat/2.png": 0,
        "cat/2021/may/1.png": 0,
        "dog/deep/1.png": 1,
    }


@pytest.mark.parametrize("names", [["only/1.png", "only/2.png"], ["cat/1.png", "dog/1.png", "stray.png"]])
def test_one_sub_folder_or_a_stray_image_means_no_labels(tmp_path, names):
    for name in names:
        save(tmp_path / name)
    source = FolderSource(tmp_path)
    assert len(source) == len(names)
    assert source.labels is None
    assert source.classes == ()


def test_upper_case_suffixes_are_images_and_other_files_are_not(tmp_path):
    for name in ["A.JPG", "b.JPEG", "c.Png", "d.TIFF"]:
        save(tmp_path / name)
    for name in ["notes.txt", "labels.csv", "png", "archive.png.zip"]:
        (tmp_path / name).write_text("not an image")
    source = FolderSource(tmp_path)
    assert list(source.paths) == ["A.JPG", "b.JPEG", "c.Png", "d.TIFF"]
    assert all(read(source, i).shape == (9, 12, 3) for i in range(4))


def test_hidden_files_and_folders_are_ignored(tmp_path):
    for name in ["cat/1.png", "dog/1.png", ".thumbnails/1.png", "cat/._1.png", ".hidden.png"]:
        save(tmp_path / name)
    source = FolderSource(tmp_path)
    assert list(source.paths) == ["cat/1.png", "dog/1.png"]
    assert source.classes == ("cat", "dog")


def test_unicode_names_with_spaces_and_quotes_are_read(tmp_path):
    names = ["größe/écran d'été.png", "猫/写真 1.png", '🐟/ein "fisch".png']
    pixels = {name: save(tmp_path / name, seed=i) for i, name in enumerate(names)}
    source = FolderSource(tmp_path)
    assert sorted(source.paths) == sorted(names)
    assert set(source.classes) == {"größe", "猫", "🐟"}
    for i, path in enumerate(source.paths):
        assert np.array_equal(read(source, i), pixels[path])


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "LA"])
def test_every_mode_of_image_is_read_as_rgb(tmp_path, mode):
    save(tmp_path / "image.png", mode=mode)
    pixels = read(FolderSource(tmp_path), 0)
    assert pixels.shape == (9, 12, 3)
    assert pixels.dtype == np.uint8


def test_a_photograph_is_turned_upright(tmp_path):
    pixels = np.zeros((8, 16, 3), dtype=np.uint8)
    pixels[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned clockwise by a quarter
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(read(FolderSource(tmp_path), 0), np.rot90(pixels, -1))


def test_a_folder_of_photographs_trains_batches_with_labels_untouched(tmp_path):
    for i in range(6):
        save(tmp_path / ("cat" if i < 2 else "dog") / f"{i}.png", seed=i)
    source = open_source(tmp_path)
    assert source.labels.tolist() == [0, 0, 1, 1, 1, 1]
    (batch,) = PhotoLoader(source, Config(batch_size=4, global_size=72, workers=0)).batches(0, 1)
    assert len(batch.indices) == 4


def test_the_fingerprint_changes_with_the_images_and_not_with_the_place(tmp_path):
    for place in ("one", "two"):
        save(tmp_path / place / "a.png")
    one, two = FolderSource(tmp_path / "one").fingerprint, FolderSource(tmp_path / "two").fingerprint
    save(tmp_path / "two" / "b.png")
    assert one == two
    assert FolderSource(tmp_path / "two").fingerprint != two


def test_a_folder_without_images_a_file_and_nothing_are_errors_that_say_so(tmp_path):
    (tmp_path / "notes.odt").write_text("")
    with pytest.raises(DataError, match="there are no images below"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="is a file, not a folder: give a folder"):
        open_source(tmp_path / "notes.odt")
    with pytest.raises(DataError, match="there is no folder"):
        open_source(tmp_path / "absent")


def test_names_that_are_not_text_are_found_and_read(tmp_path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9.png"
    pixels = save(tmp_path / "image.png")
    (tmp_path / "image.png").rename(os.fsdecode(raw))
    source = FolderSource(tmp_path)
    assert os.fsencode(source.place(0)) == raw
    assert np.array_equal(read(source, 0), pixels)


@pytest.mark.parametrize("name", ["a.png", "b.jpeg", "c.TiFf", "x.y.JPG", "é.webp", "no dot.jpg.png", "1.pgm"])
def test_names_that_are_images(tmp_path, name):
    (tmp_path / name).touch()
    assert list(FolderSource(tmp_path).paths) == [name]


@pytest.mark.parametrize("name", ["png", "jpeg", "apng", ".png", ".a.jpg", "a.jpg~", "a.jp", "a.peg", "a.png.txt", "é"])
def test_names_that_are_not_images(tmp_path, name):
    (tmp_path / name).touch()
    (tmp_path / "image.png").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / name).touch()
    assert list(FolderSource(tmp_path).paths) == ["image.png"]


def test_an_empty_file_is_found_and_reported_when_it_is_read(tmp_path):
    (tmp_path / "empty.png").touch()
    with pytest.raises(UnreadableImageError, match="the file is empty"):
        read(FolderSource(tmp_path), 0)


# Links


def test_links_are_followed_but_each_folder_is_visited_once(tmp_path):
    save(tmp_path / "in" / "cat" / "1.png")
    save(tmp_path / "out" / "2.png")
    root = tmp_path / "in"
    (root / "dog").symlink_to(tmp_path / "out")
    (root / "aaa").symlink_to(root / "cat")  # the folder itself comes first, whatever the names
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "3.png").symlink_to(root / "cat" / "1.png")
    assert list(FolderSource(root).paths) == ["cat/1.png", "cat/3.png", "dog/2.png"]


def test_broken_and_circular_links_are_skipped(tmp_path):
    save(tmp_path / "1.png")
    (tmp_path / "lost.png").symlink_to(tmp_path / "absent.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "folder.png").mkdir()
    save(tmp_path / "folder.png" / "2.png")
    assert list(FolderSource(tmp_path).paths) == ["1.png", "folder.png/2.png"]


def test_a_folder_that_is_itself_a_link(tmp_path):
    save(tmp_path / "in" / "1.png")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    assert FolderSource(tmp_path / "link").fingerprint == FolderSource(tmp_path / "in").fingerprint


# The index


@pytest.fixture
def photos(tmp_path):
    """Three classes of images that have not changed for a while."""
    for i in range(6):
        save(tmp_path / "photos" / f"class-{i % 3}" / f"{i}.png", seed=i)
    (tmp_path / "photos" / "empty").mkdir()
    settle(tmp_path / "photos")
    return tmp_path / "photos"


def settle(root):
    """As if nothing had changed in the last minute."""
    then = time.time() - 60
    for place, _, _ in os.walk(root):
        os.utime(place, (then, then))


def kept(root, index):
    source = open_source(root, index=index)
    source.keep_index(index)
    return source


def reused(root, index):
    """Whether the index that was kept is taken."""
    return open_source(root, index=index).index.file is not None


def test_a_kept_index_is_the_same_source(photos, tmp_path):
    fresh = FolderSource(photos)
    kept(photos, tmp_path / "index")
    source = open_source(photos, index=tmp_path / "index")
    assert source.index.file is not None
    assert list(source.paths) == list(fresh.paths)
    assert source.labels.tolist() == fresh.labels.tolist()
    assert (source.classes, source.fingerprint, source.name) == (fresh.classes, fresh.fingerprint, fresh.name)
    assert np.array_equal(read(source, 4), read(fresh, 4))


@pytest.mark.parametrize("where", ["", "class-0", "empty"])
def test_a_new_file_anywhere_makes_a_new_index(photos, tmp_path, where):
    before = kept(photos, tmp_path / "index")
    save(photos / where / "new.png")
    after = open_source(photos, index=tmp_path / "index")
    assert len(after) == 7
    assert after.fingerprint != before.fingerprint
    settle(photos)
    assert kept(photos, tmp_path / "index").fingerprint == after.fingerprint
    assert reused(photos, tmp_path / "index")


def test_a_file_that_went_or_was_renamed_makes_a_new_index(photos, tmp_path):
    before = kept(photos, tmp_path / "index")
    (photos / "class-1" / "1.png").rename(photos / "class-1" / "one.png")
    renamed = open_source(photos, index=tmp_path / "index")
    (photos / "class-1" / "one.png").unlink()
    gone = open_source(photos, index=tmp_path / "index")
    assert (len(before), len(renamed), len(gone)) == (6, 6, 5)
    assert len({before.fingerprint, renamed.fingerprint, gone.fingerprint}) == 3


def test_a_file_of_another_size_makes_a_new_index_though_its_folder_is_the_same(photos, tmp_path):
    before = kept(photos, tmp_path / "index")
    with (photos / "class-1" / "1.png").open("ab") as file:
        file.write(b"more")
    after = open_source(photos, index=tmp_path / "index")
    assert after.index.file is None
    assert after.fingerprint != before.fingerprint


def test_a_folder_that_changed_a_moment_ago_is_listed_again(photos, tmp_path):
    os.utime(photos / "class-0")
    kept(photos, tmp_path / "index")
    assert not reused(photos, tmp_path / "index")


def test_a_linked_folder_that_changes_makes_a_new_index(photos, tmp_path):
    save(tmp_path / "out" / "x.png")
    (photos / "class-9").symlink_to(tmp_path / "out")
    settle(photos)
    settle(tmp_path / "out")
    kept(photos, tmp_path / "index")
    assert reused(photos, tmp_path / "index")
    save(tmp_path / "out" / "y.png")
    assert len(open_source(photos, index=tmp_path / "index")) == 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:100],
        lambda content: b"alien" + content,
        lambda content: content[:-200] + bytes([content[-200] ^ 1]) + content[-199:],
        lambda content: content.replace(b"carp index 1", b"carp index 0"),
        lambda content: b"[]\n",
        lambda content: b'{"form": "carp index 1"}\n',
    ],
)
def test_a_broken_or_alien_index_is_made_again(photos, tmp_path, damage):
    source = kept(photos, tmp_path / "index")
    file = source.index.file
    file.write_bytes(damage(file.read_bytes()))
    again = open_source(photos, index=tmp_path / "index")
    assert again.index.file is None
    assert again.fingerprint == source.fingerprint
    again.keep_index(tmp_path / "index")
    assert reused(photos, tmp_path / "index")


def test_an_index_that_cannot_be_written_stays_in_memory(photos, tmp_path):
    (tmp_path / "index").write_text("a file where the folder should be")
    source = kept(photos, tmp_path / "index")
    assert source.index.file is None
    assert read(source, 0).shape == (9, 12, 3)


def test_a_copy_for_another_process_is_a_path_and_not_the_arrays(tmp_path):
    for i in range(2000):
        path = tmp_path / "photos" / f"a rather long name of an image, number {i}.png"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    source = kept(tmp_path / "photos", tmp_path / "index")
    copy = pickle.loads(pickle.dumps(source))  # noqa: TID251
    assert len(pickle.dumps(source)) < 2000
    assert list(copy.paths) == list(source.paths)
    assert len(pickle.loads(pickle.dumps(FolderSource(tmp_path / "photos")))) == 2000  # noqa: TID251


def test_finding_many_images_reports_progress_and_samples_their_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_scan, "_REPORT_EVERY", 500)
    monkeypatch.setattr(folder, "_SIZES_SAMPLED", 100)
    for name in "abc":
        (tmp_path / name).mkdir()
        for i in range(300):
            (tmp_path / name / f"{i}.png").touch()
    reported = []
    source = open_source(tmp_path, progress=lambda done, total: reported.append((done, total)))
    assert reported == [(600, 0)]
    assert len(source.index.arrays["sizes"]) == 100
