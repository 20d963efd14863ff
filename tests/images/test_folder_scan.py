"""Files that are not images are counted and reported; HEIC and AVIF photographs are images."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from carp.errors import DataError, UnreadableImageError
from carp.images.decoding import image_formats
from carp.images.decoding.decode import decode, read_file, size_of
from carp.images.sources import folder_scan
from carp.images.sources.folder import FolderSource
from tests.helpers import tiny_images, write_images
from tests.images.pictures import photographs

PICTURE = photographs(1, 60, 84)[0]


def test_files_that_are_not_images_are_counted_by_suffix(tmp_path):
    write_images(tmp_path, tiny_images(3))
    (tmp_path / "sub").mkdir()
    for name in ("a.mp4", "b.MP4", "sub/c.mp4", "d.mov", "notes", ".hidden.mp4", "x.v1 of the final version"):
        (tmp_path / name).touch()
    (tmp_path / "dead.jpg").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.jpg")
    source = FolderSource(tmp_path)
    assert len(source) == 3
    assert source.skipped == {".mp4": 3, ".mov": 1, "": 2, folder_scan.OTHER_KIND: 2}
    assert source.notes == ["skipped 8 files: 3 .mp4, 2 without a suffix, 1 .mov, 2 broken links, pipes or devices"]


def test_nothing_is_said_where_there_are_only_images(tmp_path):
    assert FolderSource(write_images(tmp_path, tiny_images(3))).notes == []


def test_a_stored_index_keeps_the_notes_on_skipped_files(tmp_path):
    folder = write_images(tmp_path / "images", tiny_images(3))
    (folder / "a.mp4").touch()
    for path in (folder, *folder.iterdir()):
        os.utime(path, (1, 1))
    FolderSource(folder).keep_index(tmp_path / "index")
    again = FolderSource(folder, index=tmp_path / "index")
    assert again.index.file is not None
    assert again.notes == ["skipped 1 file: 1 .mp4"]


def test_an_index_made_before_more_kinds_of_files_were_images_is_made_again(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "images", tiny_images(3))
    (folder / "phone.heic").touch()
    for path in (folder, *folder.iterdir()):
        os.utime(path, (1, 1))
    with monkeypatch.context() as without:
        without.setattr("carp.images.sources.folder.SUFFIXES", image_formats.SUFFIXES - {".heic"})
        before = FolderSource(folder)
        before.keep_index(tmp_path / "index")
    assert (len(before), before.skipped) == (3, {".heic": 1})
    assert len(FolderSource(folder, index=tmp_path / "index")) == 4


def test_photographs_that_need_an_extra_are_named_with_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(image_formats, "HAS_HEIC", False)
    monkeypatch.setattr("carp.images.sources.folder.SUFFIXES", image_formats.SUFFIXES - image_formats.HEIC_SUFFIXES)
    for number in range(4):
        (tmp_path / f"{number}.heic").touch()
    with pytest.raises(DataError, match=r"4 \.heic.*pip install 'carp-ssl\[heic\]'"):
        FolderSource(tmp_path)
    write_images(tmp_path, tiny_images(2))
    assert "carp-ssl[heic]" in FolderSource(tmp_path).notes[0]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs the superuser")
def test_a_sub_folder_that_may_not_be_listed_is_skipped_and_named(open_to_all):
    write_images(open_to_all / "a", tiny_images(2))
    write_images(open_to_all / "locked", tiny_images(2))
    (open_to_all / "locked").chmod(0o700)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(65534)
            source = FolderSource(open_to_all)
            named = source.notes == [f"skipped 1 sub-folder without permission to list: {open_to_all}/locked"]
            code = 0 if len(source) == 2 and named else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(FolderSource(open_to_all)) == 4


# HEIC and AVIF


def saved(tmp_path: Path, suffix: str, **options: object) -> Path:
    path = tmp_path / f"photo{suffix}"
    image_formats.pillow_formats()  # so that Pillow knows HEIC
    Image.fromarray(PICTURE).save(path, **options)
    return path


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_an_image(tmp_path):
    path = saved(tmp_path, ".avif", quality=95, subsampling="4:4:4")
    assert len(FolderSource(tmp_path)) == 1
    pixels = decode(read_file(path), "photo")
    assert pixels.shape == PICTURE.shape
    assert np.abs(pixels.astype(int) - PICTURE).mean() < 4


@pytest.mark.parametrize("suffix", [".heic", ".heif", ".HEIC"])
def test_heic_is_an_image(tmp_path, suffix):
    pytest.importorskip("pillow_heif")
    path = saved(tmp_path, suffix, quality=95, chroma=444)
    assert len(FolderSource(tmp_path)) == 1
    stored = read_file(path)
    assert size_of(stored, "photo") == (84, 60)
    pixels = decode(stored, "photo")
    assert pixels.shape == PICTURE.shape
    assert np.abs(pixels.astype(int) - PICTURE).mean() < 4


def test_a_heic_photograph_stands_upright(tmp_path):
    pytest.importorskip("pillow_heif")
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = decode(read_file(saved(tmp_path, ".heic", quality=95, chroma=444, exif=exif.tobytes())), "photo")
    assert pixels.shape == (84, 60, 3)
    assert np.abs(pixels.astype(int) - np.rot90(PICTURE, -1)).mean() < 4


def test_damaged_heic_and_avif_files_are_bad_images(tmp_path):
    kinds = [".avif"] * bool(features.check("avif")) + [".heic"] * image_formats.HAS_HEIC
    rng = np.random.default_rng(0)
    for suffix in kinds:
        whole = saved(tmp_path, suffix).read_bytes()
        for _ in range(60):
            content = bytearray(whole)
            for place in rng.integers(0, len(content), 4):
                content[place] = rng.integers(256)
            try:
                assert decode(bytes(content[: rng.integers(1, len(content))]), "damaged").ndim == 3
            except UnreadableImageError as error:
                assert "\n" not in str(error)


def test_heic_bytes_without_the_extra_say_what_is_missing(tmp_path, monkeypatch):
    pytest.importorskip("pillow_heif")
    stored = saved(tmp_path, ".heic").read_bytes()
    monkeypatch.setattr(image_formats, "HAS_HEIC", False)
    monkeypatch.setattr("carp.images.decoding.decode.pillow_formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(UnreadableImageError, match=r"carp-ssl\[heic\]"):
        decode(stored, "photo.heic")
