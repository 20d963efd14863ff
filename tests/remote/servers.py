"""Real servers on this machine, and a relay in front of one that makes it fail."""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


class Handler(SimpleHTTPRequestHandler):
    """A web server with range requests and entity tags; some paths are answered with a status."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, str]]  # (path, range)

    def send_head(self) -> Any:
        path, self.left = Path(self.translate_path(self.path)), -1
        self.asked.append((self.path, self.headers.get("Range", "")))
        if status := re.match(r"/status-(\d+)", self.path):
            self.send_response(int(status.group(1)))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if not path.is_file():
            return super().send_head()
        size, wanted = path.stat().st_size, re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, size - 1
        if wanted:
            first, last = int(wanted.group(1)), min(int(wanted.group(2) or last), last)
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{path.stat().st_mtime_ns:x}"')
        self.send_header("Content-Length", str(last - first + 1))
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        opened = path.open("rb")
        opened.seek(first)
        self.left = last - first + 1
        return opened

    def copyfile(self, source: Any, outputfile: Any) -> None:
        outputfile.write(source.read(self.left))

    def log_message(self, *_words: Any) -> None:
        pass


class PlainHandler(SimpleHTTPRequestHandler):
    """The standard library's web server, which ignores range requests."""

    def log_message(self, *_words: Any) -> None:
        pass


@contextmanager
def web_server(folder: Path, handler: type[SimpleHTTPRequestHandler] = Handler) -> Iterator[tuple[int, list[Any]]]:
    """Serve a folder: the port, and what was asked."""
    asked = list[Any]()
    own = type("Own", (handler,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(own, directory=str(folder)))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server.server_port, asked
    finally:
        server.shutdown()
        server.server_close()


class Relay:
    """Passes connections on to a server, until it is made to fail.

    Attributes:
        port: Where it listens.
        faults: What happens to the next connections, one after the other: a number of bytes after which the answer is
            cut off, "stall" for no answer, "reset" for a closed connection. Later ones are passed on.
        connections: How many there were.
        requests: How many there were on all connections.
    """

    def __init__(self, target: int) -> None:
        self._target, self.port, self.faults, self.connections = target, 0, list[int | str](), 0
        self.requests = 0
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self.rise()

    def rise(self) -> None:
        """Listen, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port, self._listener = listener.getsockname()[1], listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def die(self) -> None:
        """Close everything: connections are refused from now on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                self.connections += 1
                fault = self.faults.pop(0) if self.faults else None
                threading.Thread(target=self._serve, args=(connection, fault), daemon=True).start()

    def _serve(self, connection: socket.socket, fault: int | str | None) -> None:
        with suppress(OSError), connection:
            self._open.add(connection)
            if fault == "reset":
                return
            if fault == "stall":
                while connection.recv(65536):
                    pass
                return
            with socket.create_connection(("127.0.0.1", self._target)) as server:
                self._open.add(server)
                threading.Thread(target=self._ask, args=(connection, server), daemon=True).start()
                _pump(server, connection, fault if isinstance(fault, int) else None)
                for end in (connection, server):
                    self._open.discard(end)

    def _ask(self, connection: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while found := connection.recv(65536):
                self.requests += 1
                server.sendall(found)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    with suppress(OSError):
        while (limit is None or limit > 0) and (found := source.recv(65536)):
            target.sendall(found[:limit])
            limit = None if limit is None else limit - len(found)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def s3_endpoint(port: int) -> dict[str, str]:
    """The environment in which s3:// means a server on this machine."""
    return {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_EC2_METADATA_DISABLED": "true"}


def gs_endpoint(port: int, path: str = "") -> tuple[str, str]:
    """The name and value of the variable with which gs:// means a server on this machine."""
    return "STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}{path}"


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def upload_to_gs(folder: Path, bucket: str) -> None:
    """Copy the files of a folder to a new bucket of the server in the environment."""
    server = os.environ["STORAGE_EMULATOR_HOST"]

    def post(path: str, body: bytes, kind: str) -> None:
        request = Request(f"{server}/{path}", data=body, headers={"Content-Type": kind}, method="POST")
        with urlopen(request) as answer:
            answer.read()

    post("storage/v1/b", json.dumps({"name": bucket}).encode(), "application/json")
    for path in sorted(folder.iterdir()):
        name = f"uploadType=media&name={path.name}"
        post(f"upload/storage/v1/b/{bucket}/o?{name}", path.read_bytes(), "application/octet-stream")


def upload(folder: Path, bucket: str) -> None:
    """Copy the files of a folder to a new bucket of the server in the environment."""
    import boto3

    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    client.create_bucket(Bucket=bucket)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=str(path.relative_to(folder)), Body=path.read_bytes())
