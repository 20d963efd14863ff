"""A real server: raw requests, a port that is taken, and how it ends."""

import os
import signal
import socket
import threading
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

import carp
from carp.errors import ConfigError
from tests.web.conftest import SECRET

pytest.importorskip("uvicorn")


def raw(address: str, request: bytes) -> bytes:
    """All bytes that a server answers with."""
    parts = urlsplit(address)
    assert parts.hostname == "127.0.0.1"
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        while more := connection.recv(65536):
            found += more
    return found


def test_a_server_answers_this_machine_alone_and_ends(folder: Path) -> None:
    with carp.explore(folder / "vectors.npy", folder / "images") as explorer:
        token = urlsplit(explorer.address).path.strip("/")
        assert len(token) >= 32
        with urlopen(explorer.address, timeout=20) as page:
            assert b"Carp.explorer" in page.read()
        assert urlopen(f"{explorer.address}picture/3/160", timeout=20).headers["content-type"] == "image/jpeg"
        for path in ("../../secret.txt", "..%2f..%2fsecret.txt", "picture/../../secret.txt", "%2e%2e/secret.txt"):
            head = f"GET /{token}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            answer = raw(explorer.address, head.encode())
            assert answer.startswith(b"HTTP/1.1 404")
            assert SECRET.encode() not in answer
        other = f"GET /{token}/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        assert raw(explorer.address, other.encode()).startswith(b"HTTP/1.1 403")
        assert b"server:" not in raw(explorer.address, other.encode()).lower()
        assert not raw(explorer.address, b"\x16\x03\x01 nonsense\r\n\r\n").startswith(b"HTTP/1.1 200")
        with pytest.raises(HTTPError, match="404"):
            urlopen(explorer.address.replace(token, "0" * 32), timeout=20)
        port = urlsplit(explorer.address).port
        with pytest.raises(ConfigError, match=rf"port {port} is in use\. Give another --port"):
            carp.explore(folder / "vectors.npy", folder / "images", port=port)
    with pytest.raises((URLError, ConnectionError)):
        urlopen(explorer.address, timeout=5)


def test_ctrl_c_ends_the_wait(folder: Path) -> None:
    explorer = carp.explore(folder / "vectors.npy", folder / "images")
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    explorer.wait()
    with pytest.raises((URLError, ConnectionError)):
        urlopen(explorer.address, timeout=5)
