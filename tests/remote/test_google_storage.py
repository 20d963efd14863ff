"""`gs://`, through the real client and an emulator of Google Cloud Storage: the same bytes, one retry."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import carp
from carp.errors import DataError, StorageError
from carp.images.open_source import open_source
from carp.images.remote import remote_file
from tests.commands.conftest import Cli, cli  # noqa: F401 - a fixture
from tests.helpers import assert_same_run
from tests.remote.servers import Relay, gs_endpoint, upload_to_gs, web_server
from tests.remote.test_remote_shards import assert_same, everything
from tests.remote.test_remote_training import after, local, recipe  # noqa: F401 - fixtures


@pytest.fixture
def bucket(gs: Relay, shards: Path, request: pytest.FixtureRequest) -> str:
    """The address of a bucket with the shards."""
    name = f"test-{abs(hash(request.node.name))}"
    upload_to_gs(shards, name)
    return f"gs://{name}"


@pytest.mark.parametrize("cache_gb", [None, 0.0])
def test_shards_of_a_bucket_are_those_of_the_folder(bucket: str, shards: Path, cache_gb: float | None) -> None:
    for pattern in ("shard-{000..003}.tar", "shard-*.tar", "", "shard-000.tar"):
        source = open_source(f"{bucket}/{pattern}", cache_gb=cache_gb)
        assert_same(source, open_source(shards / pattern))
        assert source.place(0).startswith(f"{bucket}/shard-000.tar: 00000.png")


def test_a_server_that_dies_and_returns_mid_epoch_changes_no_bit(
    gs: Relay,
    bucket: str,
    recipe: Path,  # noqa: F811
    local: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Without a cache every image is a request."""
    source = open_source(f"{bucket}/shard-*.tar", cache_gb=0)
    dying = after(gs, 20, pause=0.3)
    carp.train(source, tmp_path / "run", recipe, quiet=True)
    dying.join(5)
    assert not dying.is_alive(), "the server did not die"
    assert_same_run(tmp_path / "run", local)


@pytest.mark.parametrize("fault", ["reset", "stall", 0, 150, 20_000], ids=str)
def test_a_fault_now_and_then_changes_nothing(
    fault: int | str, gs: Relay, bucket: str, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "READ_SECONDS", 0.5)
    gs.faults = [fault] * 2
    source = open_source(f"{bucket}/shard-{{000..001}}.tar")
    assert everything(source) == everything(open_source(shards / "shard-{000..001}.tar"))


@pytest.mark.parametrize("fault", ["reset", "stall"])
def test_a_server_that_goes_on_failing_is_one_line_and_not_retried_twice(
    fault: str, gs: Relay, bucket: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_file, "READ_SECONDS", 0.2)
    gs.faults = [fault] * 1000
    before, connections = time.monotonic(), gs.connections
    with pytest.raises(StorageError, match=r"cannot read gs://.*Gave up after"):
        open_source(f"{bucket}/shard-000.tar")
    assert time.monotonic() - before < 20, "gcsfs alone would wait for half a minute"
    assert gs.connections - connections <= 30, "two requests per attempt, both repeated by aiohttp; gcsfs makes six"
    assert capfd.readouterr().err.count("\n") == 1, "the warning of the first failure"


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, DataError, "access is refused"),
        (403, DataError, "access is refused"),
        (404, DataError, "there is no such file"),
        (400, DataError, "status 400"),
        (429, StorageError, "status 429"),
        (503, StorageError, "status 503"),
    ],
)
def test_the_answers_of_the_server_are_told_apart(
    status: int, error: type[Exception], words: str, anonymous_gs: None, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web_server(shards) as (port, _):
        monkeypatch.setenv(*gs_endpoint(port, f"/status-{status}"))
        with pytest.raises(error, match=words):
            open_source("gs://bucket/shard-000.tar")


@pytest.mark.parametrize("name", ["absent.tar", "absent-*.tar", "absent-{0..2}.tar"])
def test_a_missing_object_is_one_line(name: str, bucket: str, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = cli("train", f"{bucket}/{name}", "--out", tmp_path / "run")
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert f"{bucket}/absent" in err
    assert "Check the address" in err


def test_a_program_may_have_imported_gcsfs_before(anonymous_gs: None) -> None:
    """Its file system over gRPC, which it then registers, is not used."""
    code = (
        "import gcsfs; from carp.images.remote.remote_file import _file_system;"
        "print(gcsfs.GCSFileSystem.__module__, type(_file_system('gs://bucket/a.tar')[0]).__module__)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"}
    found = subprocess.check_output(
        [sys.executable, "-c", code], env={**environment, "FSSPEC_GS_TOKEN": "anon"}, text=True, timeout=300
    )
    assert found.split()[1] == "gcsfs.core"
