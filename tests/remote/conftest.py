"""Shards on this machine, behind servers that may fail."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from carp.images.decoding import transient
from carp.images.remote import find_shards, remote_file, shard_cache
from tests.helpers import tiny_images
from tests.images.test_tar_shards import write_shards
from tests.remote.servers import Relay, free_port, gs_endpoint, s3_endpoint, web_server

s3fs = pytest.importorskip("s3fs", reason="needs the extra 'remote'")
fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, short pauses, and nothing remembered of other tests."""
    monkeypatch.setenv("CARP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(transient, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(transient, "_outage", transient._Outage())
    monkeypatch.setattr(shard_cache, "_process", shard_cache._Process())
    monkeypatch.setattr(remote_file, "_ranges", {})
    find_shards.names_in.cache_clear()
    s3fs.S3FileSystem.clear_instance_cache()  # one knows the server of its test
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 images in shards of 8."""
    return write_shards(tmp_path_factory.mktemp("shards"), tiny_images(32), per_shard=8)


@pytest.fixture
def web(shards: Path) -> Iterator[tuple[Relay, str]]:
    """The shards behind a web server that can be made to fail."""
    with web_server(shards) as (port, _):
        relay = Relay(port)
        yield relay, f"http://127.0.0.1:{relay.port}"
        relay.die()


@pytest.fixture(scope="session")
def moto_port() -> Iterator[int]:
    """A server of S3."""
    moto = pytest.importorskip("moto.server", reason="needs moto, flask and flask-cors")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def s3(moto_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """A server of S3 that can be made to fail; `s3://` means it."""
    relay = Relay(moto_port)
    for name, value in s3_endpoint(relay.port).items():
        monkeypatch.setenv(name, value)
    yield relay
    relay.die()


@pytest.fixture(scope="session")
def emulator_port() -> Iterator[int]:
    """A server of Google Cloud Storage."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs gcp-storage-emulator")
    server = emulator.create_server("127.0.0.1", free_port(), in_memory=True)
    server.start()
    yield server._api._port
    server.stop()


@pytest.fixture
def gs(emulator_port: int, anonymous_gs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """A server of Google Cloud Storage that can be made to fail; `gs://` means it."""
    relay = Relay(emulator_port)
    monkeypatch.setenv(*gs_endpoint(relay.port))
    yield relay
    relay.die()


@pytest.fixture
def anonymous_gs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials for `gs://`, and no search for some on the network."""
    if not importlib.util.find_spec("gcsfs"):  # CARP imports it, after having chosen its variant
        pytest.skip("needs the extra 'gcs'")
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
