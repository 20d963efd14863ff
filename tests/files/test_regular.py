"""Files that a user names: regular ones only, none larger than expected, and nothing that waits."""

import errno
import os
import socket
from pathlib import Path

import pytest

from carp.files.regular import check_regular, open_regular, read_regular, read_text

pytestmark = pytest.mark.timeout(20)  # what waits for a writer would wait for ever


@pytest.fixture
def special(tmp_path: Path) -> dict[str, Path]:
    pipe, sock = tmp_path / "pipe", tmp_path / "s"
    os.mkfifo(pipe)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(sock))
    return {"named pipe": pipe, "socket": sock, "folder": tmp_path, "device": Path("/dev/zero")}


@pytest.mark.parametrize("kind", ["named pipe", "socket", "folder", "device"])
@pytest.mark.parametrize("read", [check_regular, open_regular, read_regular, read_text])
def test_other_kinds_of_files_are_refused_at_once_with_what_they_are(special, kind, read):
    with pytest.raises(OSError, match=kind) as error:
        read(special[kind])
    assert kind in error.value.strerror
    assert error.value.filename == str(special[kind])


def test_a_pipe_that_takes_the_place_of_a_file_after_it_was_looked_at_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    looked_at = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr("carp.files.regular.os.stat", lambda _path: looked_at)
    with pytest.raises(OSError, match="named pipe"):
        read_regular(path)


def test_a_link_to_a_regular_file_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"abc"


def test_a_sparse_file_of_40_gib_is_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(40 << 30)
    with pytest.raises(OSError, match=r"40\.0 GiB") as error:
        read_regular(path, 1000)
    assert error.value.errno == errno.EFBIG


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_all_bytes_up_to_the_limit_are_read(tmp_path, size):
    path = tmp_path / "file"
    path.write_bytes(bytes(size))
    assert read_regular(path, 1000) == bytes(size)


def test_a_file_without_a_size_is_read_up_to_the_limit(tmp_path):
    assert b"processor" in read_regular("/proc/cpuinfo", 1 << 20)
    with pytest.raises(OSError, match="more than"):
        read_regular("/proc/cpuinfo", 10)


def test_text_is_utf8_with_or_without_a_byte_order_mark(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("é".encode("utf-8-sig"))
    assert read_text(path) == "é"
