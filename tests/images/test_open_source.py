"""What a path is: chosen by looking at it, or by `source`; patterns of files."""

import subprocess
import sys
from pathlib import Path

import pytest

from carp.errors import DataError
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.images.sources.file_list import ListSource
from carp.images.sources.folder import FolderSource
from carp.images.sources.shard_files import expand_braces
from carp.images.sources.tar_shards import TarSource
from tests.helpers import tiny_images, write_images
from tests.images.test_tar_shards import write_shards


def test_a_path_is_what_it_looks_like(tmp_path):
    folder = write_images(tmp_path / "photos", tiny_images(3))
    shards = write_shards(tmp_path / "shards", tiny_images(3))
    (tmp_path / "list.txt").write_text("photos/000.png\n")
    for path, kind in [(folder, FolderSource), (shards, TarSource), (tmp_path / "list.txt", ListSource)]:
        for form in (path, str(path)):
            assert isinstance(open_source(form), kind)
    assert isinstance(open_source("embedded:shapes-test"), ArraySource)
    assert isinstance(open_source(tiny_images(2)), ArraySource)
    source = open_source(folder)
    assert open_source(source) is source


def test_a_folder_of_images_with_an_archive_beside_them_is_a_folder(tmp_path):
    write_images(tmp_path / "a", tiny_images(2))
    write_shards(tmp_path / "a", tiny_images(2))
    assert isinstance(open_source(tmp_path / "a"), FolderSource)
    write_images(tmp_path / "b", tiny_images(4), classes=2)
    write_shards(tmp_path / "b", tiny_images(2))
    assert isinstance(open_source(tmp_path / "b"), FolderSource)
    assert isinstance(open_source(tmp_path / "b", kind="tar"), TarSource)
    assert isinstance(open_source(f"tar:{tmp_path / 'b'}"), TarSource)


def test_a_folder_of_shards_and_parquet_files_is_shards_and_a_file_of_a_prefixed_name_is_itself(tmp_path, monkeypatch):
    """Kinds are asked in the order of `claim_order`; a prefix counts only where no file has that name."""
    write_shards(tmp_path / "mixed", tiny_images(2))
    (tmp_path / "mixed" / "a.parquet").touch()
    assert isinstance(open_source(tmp_path / "mixed"), TarSource)
    monkeypatch.chdir(tmp_path)
    assert isinstance(open_source(write_images(Path("tar:photos"), tiny_images(2))), FolderSource)


def test_listing_the_kinds_imports_no_large_library():
    code = (
        "import sys; from carp.images.source import kinds_by_word; print(*kinds_by_word());"
        "print(*({'torch', 'torchvision', 'pyarrow', 'cv2', 'fsspec'} & set(sys.modules)))"
    )
    kinds, imported = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert set(kinds.split()) == {"arrow", "dataset", "embedded", "folder", "list", "parquet", "tar", "torchvision"}
    assert imported == ""


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ("absent", "auto", r"there is no folder absent\. Give a folder of images, .*a list of paths .*tar shards"),
        ("absent", "folder", "there is no folder absent"),
        ("absent", "tar", "there is no file absent"),
        ("absent", "parquet", "there is no file absent"),
        ("absent", "tra", r"there is no kind of source 'tra'\. Did you mean 'tar'\? Kinds: auto"),
        ("absent", "embedded", "there is no embedded set 'absent'"),
        ("embedded:shape", "auto", r"there is no embedded set 'shape'\. Did you mean 'shapes'"),
        ("tar:absent-{0..3}.tar", "folder", "source is 'folder', but .* tar:absent"),
        ("x" * 5000, "auto", "cannot open x.*: File name too long"),
        ("absent-*", "auto", r"absent-\*: .* set source="),
    ],
)
def test_mistakes_say_what_to_do(tmp_path, monkeypatch, data, kind, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message):
        open_source(data, kind=kind)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a.tar", ["a.tar"]),
        ("a{0..2}", ["a0", "a1", "a2"]),
        ("a{08..11}b", ["a08b", "a09b", "a10b", "a11b"]),
        ("a{8..11}", ["a8", "a9", "a10", "a11"]),
        ("{x,yy,}-{1..2}", ["x-1", "x-2", "yy-1", "yy-2", "-1", "-2"]),
    ],
)
def test_braces(pattern, words):
    assert expand_braces(pattern) == words
