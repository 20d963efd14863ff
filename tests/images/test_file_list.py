"""Lists of image files: paths and labels as people write them, and mistakes reported with their line."""

import os
import pickle

import numpy as np
import pytest
from PIL import Image

from carp.errors import DataError, UnreadableImageError
from carp.images.open_source import open_source
from carp.images.source import read
from carp.images.sources.file_list import ListSource
from tests.helpers import tiny_images, write_images


def written(folder, name, text, encoding="utf-8"):
    path = folder / name
    path.write_bytes(text.encode(encoding, "surrogateescape") if isinstance(text, str) else text)
    return path


def opened(folder, name, text):
    return open_source(written(folder, name, text))


def test_a_text_is_a_path_a_line_relative_to_the_list_or_absolute(tmp_path):
    images = tiny_images(3)
    write_images(tmp_path / "in", images[:2])
    write_images(tmp_path / "elsewhere", images[2:])
    source = opened(tmp_path, "list.txt", f"in/001.png\n\n  in/000.png  \r\n{tmp_path}/elsewhere/000.png")
    assert isinstance(source, ListSource)
    assert list(source.paths) == ["in/001.png", "in/000.png", f"{tmp_path}/elsewhere/000.png"]
    for i, expected in enumerate(images[[1, 0, 2]]):
        assert np.array_equal(read(source, i), expected)
    assert source.labels is None
    assert source.classes == ()
    assert source.place(0) == str(tmp_path / "in" / "001.png")


@pytest.mark.parametrize("sign", ["\t", ",", ", ", " \t "])
def test_labels_follow_a_tab_or_a_comma(tmp_path, sign):
    source = opened(tmp_path, "list.txt", "".join(f"{name}.jpg{sign}{label}\n" for name, label in ["ad", "bc", "cd"]))
    assert list(source.paths) == ["a.jpg", "b.jpg", "c.jpg"]
    assert source.classes == ("c", "d")
    assert source.labels.tolist() == [1, 0, 1]


def test_a_comma_may_belong_to_the_path(tmp_path):
    source = opened(tmp_path, "list.txt", "Paris, May/1.jpg\na,b.png\n")
    assert list(source.paths) == ["Paris, May/1.jpg", "a,b.png"]
    assert source.labels is None
    both = opened(tmp_path, "both.txt", "Paris, May/1.jpg,x\nLyon, May/1.jpg,y\n")
    assert list(both.paths) == ["Paris, May/1.jpg", "Lyon, May/1.jpg"]
    assert both.classes == ("x", "y")


def test_numbers_are_classes_in_the_order_of_the_numbers(tmp_path):
    source = opened(tmp_path, "list.csv", "a.png,10\nb.png,9\nc.png,100\nd.png,9\n")
    assert source.classes == ("9", "10", "100")
    assert source.labels.tolist() == [1, 0, 2, 0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("l.csv", "path,label\na.png,x\nb.png,y\n"),
        ("l.csv", "id,Label,Path\n1,x,a.png\n2,y,b.png\n"),
        ("l.csv", '"a.png","x"\n"b.png","y"\n'),
        ("l.csv", "\ufefffilename,class\na.png,x\n\nb.png,y\n"),
        ("l.CSV", "a.png,x\r\nb.png,y\r\n"),
        ("l.tsv", "file\tcategory\na.png\tx\nb.png\ty\n"),
    ],
)
def test_tables_with_and_without_a_first_line_of_names(tmp_path, name, text):
    source = opened(tmp_path, name, text)
    assert list(source.paths) == ["a.png", "b.png"]
    assert source.classes == ("x", "y")


def test_a_table_of_paths_alone_has_no_labels(tmp_path):
    for text in ("path\na.png\nb.png\n", "a.png\nb.png\n", "path,width\na.png,3\nb.png,4\n"):
        assert opened(tmp_path, "l.csv", text).labels is None


def test_names_that_are_not_text_survive(tmp_path):
    Image.fromarray(tiny_images(1)[0]).save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    source = opened(tmp_path, "list.txt", b"caf\xe9.png\n")
    assert read(source, 0).shape == (32, 32, 3)


def test_a_missing_file_shows_when_it_is_read(tmp_path):
    source = opened(tmp_path, "list.txt", "absent.png\n")
    with pytest.raises(UnreadableImageError, match="there is no such file"):
        read(source, 0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.txt", "", "l.txt names no images.*one path per line"),
        ("l.txt", "\n \n", "l.txt names no images"),
        ("l.txt", "a.png,x\n\nb.png\n", r"l.txt, line 3: 'b.png' has no label, but line 1 has one\. Label all images"),
        ("l.txt", "a.png\nb.png\tx\n", r"l.txt, line 2: 'b.png' has a label, but line 1 has none"),
        ("l.txt", "a.png\nb.png,\n", "l.txt, line 2: 'b.png,' must be a path, or a path, a tab or comma, and a label"),
        ("l.txt", "a\0b\n", "line 1: .* NUL byte"),
        ("l.csv", "path,label\na.png,x\nb.png,\n", "l.csv, line 3: the label is missing in 'b.png,'"),
        ("l.csv", "path,label\na.png,x\n,y\n", "l.csv, line 3: the path is missing in ',y'"),
        ("l.csv", "path,label\na.png,x\nb.png\n", "l.csv, line 3: the label is missing in 'b.png'"),
        (
            "l.csv",
            "pth,lbl\na.png,x\n",
            r"l.csv, line 1: .*paths, received the columns pth, lbl\. Did you mean .*'path'",
        ),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path, name, text, message):
    with pytest.raises(DataError, match=message) as raised:
        opened(tmp_path, name, text)
    assert "\n" not in str(raised.value)


def test_a_list_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        open_source(tmp_path / "absent", kind="list")


def test_any_file_is_a_list_with_source_list(tmp_path):
    path = written(tmp_path, "train.lst", "a.png\n")
    with pytest.raises(DataError, match="is a file, not a folder"):
        open_source(path)
    assert len(open_source(path, kind="list")) == len(open_source(f"list:{path}")) == 1


def test_the_index_is_kept_until_the_list_changes(tmp_path):
    path = written(tmp_path, "l.txt", "a.png,x\nb.png,y\n")
    source = open_source(path)
    source.keep_index(tmp_path / "index")
    again = open_source(path, index=tmp_path / "index")
    assert again.index.file is not None
    copy = pickle.loads(pickle.dumps(again))  # noqa: TID251
    for other in (again, copy):
        assert list(other.paths) == ["a.png", "b.png"]
        assert other.labels.tolist() == [0, 1]
        assert other.fingerprint == source.fingerprint
    written(tmp_path, "l.txt", "a.png,x\nc.png,y\nd.png,y\n")
    changed = open_source(path, index=tmp_path / "index")
    assert len(changed) == 3
    assert changed.fingerprint != source.fingerprint
