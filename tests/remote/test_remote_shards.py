"""Remote shards are the local ones: the same index, order and bytes, whatever the cache holds."""

import copy
import importlib
import multiprocessing
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from carp.errors import DataError, MissingExtraError, StorageError
from carp.images.open_source import open_source
from carp.images.remote import remote_file, shard_cache
from carp.images.source import Source
from tests.remote.servers import Handler, PlainHandler, Relay, s3_endpoint, upload, web_server

fsspec_registry = importlib.import_module("fsspec.registry")


def everything(source: Source) -> list[bytes]:
    return [bytes(source.fetch(i)) for i in range(len(source))]  # type: ignore[arg-type]


def assert_same(ours: Source, theirs: Source) -> None:
    assert ours.fingerprint == theirs.fingerprint
    assert everything(ours) == everything(theirs)
    assert ours.classes == theirs.classes
    assert ours.groups.tolist() == theirs.groups.tolist()  # type: ignore[union-attr]


def test_shards_of_a_bucket_are_those_of_the_folder(s3: Relay, shards: Path) -> None:
    upload(shards, "images")
    for pattern in ("shard-{000..003}.tar", "shard-*.tar", "", "shard-000.tar"):
        source = open_source(f"s3://images/{pattern}")
        assert_same(source, open_source(shards / pattern))
        assert source.name == f"s3://images/{pattern}"
        assert source.place(0).startswith("s3://images/shard-000.tar: 00000.png")


@pytest.mark.parametrize("cache_gb", [None, 0.0, 6e-5])
def test_the_bytes_do_not_depend_on_the_cache(
    cache_gb: float | None, web: tuple[Relay, str], shards: Path, private_cache: Path
) -> None:
    """A shard has 51 kB: the last cache holds one of the four, and is never exceeded."""
    source = open_source(f"{web[1]}/shard-{{000..003}}.tar", cache_gb=cache_gb)
    for _ in range(2):
        assert_same(source, open_source(shards))
    kept = list(private_cache.glob("*.shard")) if private_cache.exists() else []
    assert len(kept) == {None: 4, 0.0: 0}.get(cache_gb, 1)
    limit = 1e12 if cache_gb is None else cache_gb * 1e9
    assert sum(path.stat().st_size for path in kept) <= limit


def test_a_warm_cache_needs_no_server(web: tuple[Relay, str], shards: Path) -> None:
    relay, address = web
    source = open_source(f"{address}/shard-{{000..003}}.tar")
    relay.die()
    assert everything(copy.deepcopy(source)) == everything(open_source(shards))


def test_threads_and_processes_download_a_shard_once(shards: Path) -> None:
    with web_server(shards) as (port, asked):
        address = f"http://127.0.0.1:{port}/"
        open_source(f"{address}shard-*.tar", cache_gb=0).keep_index(shards.parent / "index")
        source = open_source(f"{address}shard-*.tar", index=shards.parent / "index")
        asked.clear()
        with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as pool:
            parts = [pool.submit(everything, source) for _ in range(3)]
            with ThreadPoolExecutor(3) as threads:
                parts += [threads.submit(everything, source) for _ in range(3)]
            expected = everything(open_source(shards))
            assert all(part.result() == expected for part in parts)
        sent = Counter(path for path, part in asked if part and not part.endswith("=0-0"))
        assert sent == {f"/{path.name}": 1 for path in shards.glob("*.tar")}
        assert_same(open_source(address), open_source(shards))


def test_the_shard_that_was_not_used_for_longest_makes_room(
    web: tuple[Relay, str], private_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (
        open_source(f"{web[1]}/shard-00{i}.tar", cache_gb=1.1e-4) for i in range(3)
    )  # the third finds no room, because the others are in use
    sizes = {path: path.stat().st_size for path in private_cache.glob("*.shard")}
    assert len(sizes) == 2
    for path in sizes:
        os.utime(path, (time.time() - 100,) * 2)
    everything(second)  # notes its use
    old = [path for path in sizes if time.time() - path.stat().st_mtime > 50]
    shard_cache._process.full_until.clear()
    everything(third)
    kept = set(private_cache.glob("*.shard"))
    assert len(kept) == 2
    assert not kept & set(old)
    assert len(everything(first)) == 8


def test_a_damaged_or_abandoned_file_in_the_cache_is_replaced(
    web: tuple[Relay, str], shards: Path, private_cache: Path
) -> None:
    source = open_source(f"{web[1]}/shard-000.tar")
    (kept,) = private_cache.glob("*.shard")
    os.truncate(kept, 100)
    left = private_cache / f".unfinished-999999999.{'0' * 6}-x.shard"
    left.write_bytes(bytes(1000))
    os.utime(left, (0, 0))
    assert_same(source, open_source(shards / "shard-000.tar"))
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_done_without(
    web: tuple[Relay, str], shards: Path, private_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private_cache.write_text("not a folder")
    assert_same(open_source(f"{web[1]}/shard-{{000..003}}.tar"), open_source(shards))
    assert capsys.readouterr().err.count("cannot keep shards in") == 1


def test_a_server_without_range_requests_sends_whole_shards(shards: Path) -> None:
    with web_server(shards, PlainHandler) as (port, _):
        address = f"http://127.0.0.1:{port}/shard-{{000..003}}.tar"
        with pytest.raises(StorageError, match=r"range requests\. Raise cache_gb"):
            everything(open_source(address, cache_gb=0))
        assert_same(open_source(address), open_source(shards))


def test_a_shard_that_changed_is_another_one(tmp_path: Path, shards: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    target = served / "a.tar"
    target.write_bytes((shards / "shard-000.tar").read_bytes())
    with web_server(served) as (port, _):
        address = f"http://127.0.0.1:{port}/a.tar"
        before = open_source(address, index=tmp_path / "index")
        before.keep_index(tmp_path / "index")
        target.write_bytes((shards / "shard-001.tar").read_bytes())
        after = open_source(address, index=tmp_path / "index")
        assert_same(after, open_source(shards / "shard-001.tar"))
        assert before.fingerprint != after.fingerprint


class Changing(Handler):
    """A web server whose files change whenever some of their bytes were sent."""

    def copyfile(self, source: Any, outputfile: Any) -> None:
        os.utime(self.translate_path(self.path))
        super().copyfile(source, outputfile)


def test_a_shard_that_changes_while_it_is_downloaded_is_one_line(shards: Path, private_cache: Path) -> None:
    with (
        web_server(shards, Changing) as (port, _),
        pytest.raises(DataError, match=r"shard-000\.tar changed while it was being read"),
    ):
        open_source(f"http://127.0.0.1:{port}/shard-000.tar")
    assert not list(private_cache.glob("*.shard"))


@pytest.mark.parametrize("braces", ["{3..1}", "{x}"])
def test_a_wrong_pattern_shows_no_secret(braces: str) -> None:
    with pytest.raises(DataError) as raised:
        open_source(f"https://user:hunter2@host/a-{braces}.tar?sig=hunter3")
    assert "hunter" not in str(raised.value)


def test_a_stored_index_is_found_again_without_reading_the_shards(
    web: tuple[Relay, str], shards: Path, tmp_path: Path
) -> None:
    address = f"{web[1]}/shard-{{000..003}}.tar"
    open_source(address, cache_gb=0).keep_index(tmp_path)
    before = web[0].connections
    source = open_source(address, index=tmp_path, cache_gb=0)
    assert source.index.file is not None  # type: ignore[attr-defined]
    assert web[0].connections - before <= 4, "one question per shard at most"
    assert_same(source, open_source(shards))


@pytest.mark.parametrize(("fault", "count"), [("reset", 2), ("stall", 1), (0, 1), (150, 2), (20_000, 3)], ids=str)
def test_a_fault_now_and_then_changes_nothing(
    fault: int | str, count: int, web: tuple[Relay, str], shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "READ_SECONDS", 0.5)
    relay, address = web
    relay.faults = [fault] * count
    source = open_source(f"{address}/shard-{{000..001}}.tar")
    relay.die()
    relay.rise()
    assert everything(source) == everything(open_source(shards / "shard-{000..001}.tar"))


@pytest.mark.parametrize("fault", ["reset", "stall", 150])
def test_a_server_that_goes_on_failing_is_one_line(
    fault: str | int, web: tuple[Relay, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "READ_SECONDS", 0.2)
    relay, address = web
    relay.faults = [fault] * 1000
    with pytest.raises(StorageError, match=r"/shard-000\.tar: .*Rerun the same command") as raised:
        open_source(f"{address}/shard-000.tar?X-Amz-Signature=secret")
    assert "secret" not in str(raised.value)


def test_a_refused_connection_is_one_line(s3: Relay) -> None:
    s3.die()
    with pytest.raises(StorageError, match=r"cannot read s3://bucket/a\.tar: .*Gave up after"):
        open_source("s3://bucket/a.tar")


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("status-404/a.tar", DataError, "there is no such file"),
        ("status-403/a.tar", DataError, "access is refused"),
        ("status-400/a.tar", DataError, "status 400"),
        ("status-503/a.tar", StorageError, "status 503"),
        ("absent-{0..2}.tar", DataError, r"absent-0\.tar: there is no such file"),
    ],
)
def test_the_answers_of_a_server_are_told_apart(
    path: str, error: type[DataError], words: str, web: tuple[Relay, str]
) -> None:
    with pytest.raises(error, match=words) as raised:
        open_source(f"{web[1].replace('//', '//user:hunter2@')}/{path}?token=hunter3")
    assert "hunter" not in str(raised.value)


def test_credentials_that_expire_stop_the_run_instead_of_marking_images(
    web: tuple[Relay, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(f"{web[1]}/shard-000.tar", cache_gb=0)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "access is refused (status 403)")

    monkeypatch.setattr(remote_file, "_ask_once", refuse)
    with pytest.raises(StorageError, match=r"access is refused.*No image was marked as bad"):
        source.fetch(0)


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("quux://bucket/a.tar", DataError, "not a protocol"),
        ("s3://bucket/pictures.zip", DataError, "there is no such file"),
        ("s3://bucket/", DataError, "cannot infer the kind"),
        ("gs://bucket/a.tar", MissingExtraError, r"pip install 'carp-ssl\[gcs\]'"),
    ],
)
def test_other_mistakes(
    address: str, error: type[Exception], words: str, s3: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("gcsfs", "gcsfs.core"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    monkeypatch.delitem(fsspec_registry._registry, "gs", raising=False)
    if address.endswith("/"):
        upload(Path(__file__).parent, "bucket")
    with pytest.raises(error, match=words):
        open_source(address)


def test_s3_without_credentials_is_one_line(s3: Relay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in s3_endpoint(0):
        if name.startswith("AWS_") and "KEY" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"s3://somewhere/a\.tar: access is refused.*credentials"):
        open_source("s3://somewhere/a.tar")
