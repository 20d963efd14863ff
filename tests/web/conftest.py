"""An explorer without an encoder: images with hostile names, and vectors of nobody."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.console.progress import Display
from carp.features.feature_options import FeatureOptions
from carp.web.answers import Answers
from carp.web.open_spaces import Opening, open_spaces
from tests.helpers import tiny_images, write_images

pytest.importorskip("starlette")
pytest.importorskip("faiss")

TOKEN = "0123456789abcdef"
SECRET = "nobody may read this"
HOST = "127.0.0.1:8000"
COUNT = 40


@dataclass(frozen=True)
class Answer:
    """What a browser gets."""

    status: int
    headers: dict[str, str]
    body: bytes


Ask = Callable[..., Answer]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of images, vectors that tell them apart, and a file beside them that is none of the data."""
    place = tmp_path_factory.mktemp("explored")
    write_images(place / "images", tiny_images(COUNT), classes=2)
    (place / "images" / "class-0" / "000.png").rename(place / "images" / "class-0" / "<img src=x onerror=alert(1)>.png")
    (place / "secret.txt").write_text(SECRET)
    (place / "images" / "secret.txt").write_text(SECRET)
    generator = np.random.default_rng(0)
    own = np.repeat([0, 1], COUNT // 2)
    vectors = generator.normal(size=(2, 8))[own] + 0.3 * generator.normal(size=(COUNT, 8))
    np.save(place / "vectors.npy", vectors.astype(np.float32))
    np.save(place / "others.npy", generator.normal(size=(COUNT, 5)).astype(np.float32))
    return place


@pytest.fixture(scope="session")
def opening(folder: Path) -> Opening:
    return Opening(folder / "images", None, "teacher", FeatureOptions(), Display(quiet=True))


@pytest.fixture
def answers(folder: Path, opening: Opening, tmp_path: Path) -> Iterator[Answers]:
    images, spaces = open_spaces([folder / "vectors.npy", folder / "others.npy"], opening)
    made = Answers(images, spaces, tmp_path / "out")
    yield made
    made.background.stop()


@pytest.fixture
def ask(answers: Answers) -> Ask:
    """`ask("GET", "/path")` is one request as a server would pass it on."""
    from carp.web.routes import application

    app = application(answers, TOKEN)

    def call(method: str, path: str | bytes, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        raw = path if isinstance(path, bytes) else path.encode()
        given = {"host": HOST, **(headers or {})}
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": raw.partition(b"?")[0].decode("utf-8", "surrogateescape"),
            "raw_path": raw.partition(b"?")[0],
            "query_string": raw.partition(b"?")[2],
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }
        sent: list[dict[str, Any]] = []
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return unread.pop(0) if unread else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(app(scope, receive, send))
        start = next(message for message in sent if message["type"] == "http.response.start")
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return Answer(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, content)

    return call
