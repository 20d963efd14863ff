"""Tar shards: members are found in every form of header, samples are put together, broken shards are named."""

import gzip
import io
import json
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from carp.errors import DataError, UnreadableImageError
from carp.images.open_source import open_source
from carp.images.remote.shard import DescriptorReader
from carp.images.source import read
from carp.images.sources.tar_headers import members
from carp.images.sources.tar_shards import TarSource
from tests.helpers import tiny_images

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=300)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png")
    return buffer.getvalue()


def write_tar(path, contents, format=tarfile.GNU_FORMAT):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in contents:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_shards(folder, images, per_shard=5, *, labels=True):
    for start in range(0, len(images), per_shard):
        contents = []
        for i in range(start, min(start + per_shard, len(images))):
            contents.append((f"{i:05d}.png", png(images[i])))
            if labels:
                contents.append((f"{i:05d}.cls", str(i % 3).encode()))
        write_tar(folder / f"shard-{start // per_shard:03d}.tar", contents)
    return folder


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path / "shards", tiny_images(17))


def test_images_come_in_the_order_of_shards_and_members(shards):
    source = open_source(shards)
    assert isinstance(source, TarSource)
    assert len(source) == 17
    assert source.groups.tolist() == [5, 5, 5, 2]
    assert source.classes == ("0", "1", "2")
    assert source.labels.tolist() == [i % 3 for i in range(17)]
    for i, pixels in enumerate(tiny_images(17)):
        assert np.array_equal(read(source, i), pixels)
    assert source.place(6) == f"{shards / 'shard-001.tar'}: 00006.png"


def test_shards_are_named_in_several_ways(shards):
    every = open_source(shards).fingerprint
    for pattern in ("shard-{000..003}.tar", "shard-*.tar", "shard-00[0-3].tar", "shard-{000,001,002,003}.tar"):
        assert open_source(shards / pattern).fingerprint == every, pattern
    assert len(open_source(shards / "shard-{001..002}.tar")) == 10
    assert len(open_source(str(shards / "shard-003.tar"))) == 2
    (shards / "README.md").write_text("notes")
    assert open_source(shards).fingerprint == every


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_unicode_names_are_found_in_every_form(tmp_path, form):
    names = ["a.png", "d" * 60 + "/" + "e" * 70 + ".png", "größe/猫.png", "./b.png", "x" * 96 + ".png"]
    if form != tarfile.USTAR_FORMAT:
        names += ["f" * 200 + "/" + "g" * 150 + ".png", "ü" * 90 + ".png"]
    images = tiny_images(len(names))
    path = write_tar(tmp_path / "a.tar", [(n, png(p)) for n, p in zip(names, images, strict=True)], form)
    source = open_source(path)
    assert [source.place(i).removeprefix(f"{path}: ") for i in range(len(source))] == names
    for i, pixels in enumerate(images):
        assert np.array_equal(read(source, i), pixels)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    contents=st.lists(st.tuples(NAMES.filter(lambda n: not n.endswith("/")), st.binary(max_size=2000)), max_size=8),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_every_member_lies_where_the_standard_library_says(tmp_path_factory, contents, format):
    path = write_tar(tmp_path_factory.getbasetemp() / "any.tar", contents, format)
    with tarfile.open(path) as archive:
        expected = [(m.name, m.offset_data, m.size) for m in archive if m.isreg()]
    with path.open("rb") as file:
        assert [tuple(m) for m in members(DescriptorReader(file.fileno()))] == expected


def test_links_and_folders_have_no_contents_whatever_their_size_says(tmp_path):
    pixels = tiny_images(1)[0]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE):
            info = tarfile.TarInfo("other.png")
            info.type, info.linkname, info.size = kind, "image.png", 700
            archive.addfile(info)
        info = tarfile.TarInfo("image.png")
        info.size = len(png(pixels))
        archive.addfile(info, io.BytesIO(png(pixels)))
    source = open_source(tmp_path / "a.tar")
    assert len(source) == 1
    assert np.array_equal(read(source, 0), pixels)


def test_a_sparse_member_is_refused(tmp_path):
    info = tarfile.TarInfo("a.png")
    info.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(DataError, match=r"a\.tar is broken: it has a sparse file \(at byte 0\)"):
        open_source(tmp_path / "a.tar")


def test_large_sizes_as_pax_and_as_binary_are_read(tmp_path):
    pixels = tiny_images(1)[0]
    content = png(pixels)
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        info = tarfile.TarInfo("a.png")
        info.size = len(content)
        header = info.tobuf(form)
        if form == tarfile.GNU_FORMAT:  # the size as a binary number, as GNU writes it above 8 GiB
            header = bytearray(header)
            header[124:136] = bytes([0x80]) + len(content).to_bytes(11, "big")
            header[148:156] = b" " * 8
            header[148:156] = b"%06o\0 " % sum(header)
        else:
            info.pax_headers = {"size": str(len(content))}
            header = info.tobuf(form)
        padded = content + bytes(-len(content) % 512)
        (tmp_path / "a.tar").write_bytes(bytes(header) + padded + bytes(1024))
        assert np.array_equal(read(open_source(tmp_path / "a.tar"), 0), pixels)


def test_a_sample_is_what_shares_the_name_up_to_the_first_dot(tmp_path):
    image = png(tiny_images(1)[0])
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("x/1.json", json.dumps({"label": "cat"}).encode()),
            ("x/1.JPG", image),
            ("x/1.seg.png", b"a mask is not an image of its own"),
            ("y/1.png", image),
            ("y/1.json", json.dumps({"cls": "dog", "width": 3}).encode()),
            ("y/2.png", image),
            ("y/2.webp", b"a second image of a sample is left alone"),
            ("y/2.cls", b"emu\n"),
            ("y/2.json", json.dumps({"label": "not this"}).encode()),
            ("y/._3.png", b"hidden"),
            ("notes.txt", b"nothing"),
        ],
    )
    source = open_source(path)
    assert [source.place(i).split(": ")[1] for i in range(len(source))] == ["x/1.JPG", "y/1.png", "y/2.png"]
    assert source.classes == ("cat", "dog", "emu")
    assert source.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("label", [None, b"", b"no json", b"[1]", b'{"label": [1]}', b'{"other": 1}'])
def test_an_image_without_a_label_means_no_labels(tmp_path, label):
    image = png(tiny_images(1)[0])
    contents = [("1.png", image), ("1.cls", b"0"), ("2.png", image)]
    path = write_tar(tmp_path / "a.tar", contents + ([("2.json", label)] if label is not None else []))
    source = open_source(path)
    assert len(source) == 2
    assert source.labels is None
    assert source.classes == ()


def test_every_truncation_of_a_shard_is_an_error_that_names_it(tmp_path):
    image = png(tiny_images(1, 8)[0])
    whole = write_tar(tmp_path / "a.tar", [("1.png", image), ("l" * 150 + ".png", image)]).read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in {0, 1, 100, 511, 512, 513, 1000, 1024, 1536, 2048, end - 1, end}:
        (tmp_path / "b.tar").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"the shard .*b\.tar is broken: .* or leave it out") as raised:
            open_source(tmp_path / "b.tar")
        assert "\n" not in str(raised.value)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_headers_give_a_source_or_one_line(tmp_path_factory, changes):
    folder = tmp_path_factory.getbasetemp()
    image = png(tiny_images(1, 8)[0])
    contents = [("1.png", image), ("l" * 150 + ".png", image)]
    damaged = bytearray(write_tar(folder / "fuzz.tar", contents, tarfile.PAX_FORMAT).read_bytes())
    for place, value in changes:
        damaged[place] = value
    (folder / "fuzz.tar").write_bytes(damaged)
    try:
        source = open_source(folder / "fuzz.tar")
    except DataError as error:
        assert "fuzz.tar" in str(error)
        assert "\n" not in str(error)
    else:
        assert all(isinstance(source.fetch(i), bytes) for i in range(len(source)))


def test_an_unusable_shard_is_an_error_with_the_remedy(tmp_path, shards):
    (tmp_path / "text.tar").write_text("no archive " * 100)
    (tmp_path / "gz.tar").write_bytes(gzip.compress((shards / "shard-000.tar").read_bytes()))
    (tmp_path / "a.tar.gz").write_bytes((tmp_path / "gz.tar").read_bytes())
    write_tar(tmp_path / "empty.tar", [("notes.txt", b"x")])
    for name, message in [
        ("text.tar", "text.tar is broken: .*not a tar archive"),
        ("gz.tar", "gz.tar is compressed.*gunzip"),
        ("a.tar.gz", "a.tar.gz is compressed.*gunzip"),
        ("empty.tar", "there are no images in .*empty.tar: a sample is named KEY.jpg"),
        ("shards/shard-{000..005}.tar", r"there is no file .*shard-004\.tar \(and 1 more\)"),
        ("shards/x-*.tar", r"no file matches .*x-\*\.tar"),
        ("shards/shard-{3..1}.tar", r"the range \{3\.\.1\} .* must ascend"),
        ("shards/shard-{abc}.tar", r"\{abc\} in .* is neither a range"),
    ]:
        with pytest.raises(DataError, match=message):
            open_source(tmp_path / name)


def test_a_shard_that_shrinks_or_goes_makes_images_unreadable(shards):
    source = open_source(shards)
    whole = (shards / "shard-001.tar").read_bytes()
    (shards / "shard-001.tar").write_bytes(whole[:1000])
    (shards / "shard-002.tar").unlink()
    with pytest.raises(UnreadableImageError, match=r"shard-001\.tar: 00008\.png: the shard ends before"):
        source.fetch(8)
    with pytest.raises(UnreadableImageError, match=r"shard-002\.tar: 00011\.png: No such file"):
        source.fetch(11)
    assert read(source, 0).shape == (32, 32, 3)


def test_the_fingerprint_is_that_of_the_contents(shards, tmp_path):
    one = open_source(shards).fingerprint
    assert open_source(write_shards(tmp_path / "copy", tiny_images(17))).fingerprint == one
    assert open_source(write_shards(tmp_path / "less", tiny_images(16))).fingerprint != one
    assert open_source(write_shards(tmp_path / "bare", tiny_images(17), labels=False)).fingerprint != one


def test_the_index_is_kept_until_a_shard_changes(shards, tmp_path):
    first = open_source(shards)
    first.keep_index(tmp_path / "index")
    again = open_source(shards, index=tmp_path / "index")
    assert again.index.file is not None
    copy = pickle.loads(pickle.dumps(again))  # noqa: TID251
    for source in (first, again, copy):
        assert [source.fetch(i) for i in (0, 16)] == [png(tiny_images(17)[i]) for i in (0, 16)]
        assert source.labels.tolist() == first.labels.tolist()
        assert source.groups.tolist() == [5, 5, 5, 2]
        assert source.fingerprint == first.fingerprint
    assert len(pickle.dumps(again)) < 3000
    write_tar(shards / "shard-003.tar", [("new.png", png(tiny_images(1)[0]))])
    assert len(open_source(shards, index=tmp_path / "index")) == 16


def test_threads_may_read_at_the_same_time(shards):
    source, images = open_source(shards), tiny_images(17)
    with ThreadPoolExecutor(8) as pool:
        for i, pixels in zip(
            list(range(17)) * 20, pool.map(lambda i: read(source, i), list(range(17)) * 20), strict=True
        ):
            assert np.array_equal(pixels, images[i])
