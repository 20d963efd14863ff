"""A run on remote shards has the bits of one on local shards, through faults and restarts; and no secret is kept."""

import threading
import time
from pathlib import Path

import pytest

import carp
from carp.errors import DataError, StorageError
from carp.features.stored_images import StoredImages
from carp.images.open_source import open_source
from tests.commands.conftest import Cli, cli  # noqa: F401 - a fixture
from tests.helpers import assert_same_run, steps_of, write_recipe
from tests.remote.servers import Relay, upload

SETTINGS = {"epochs": 2, "batch_size": 8, "global_size": 72, "workers": 1, "shuffle_buffer": 9, "checkpoint_steps": 3}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "photos.yaml", **SETTINGS)


@pytest.fixture(scope="module")
def local(shards: Path, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on local shards."""
    out = tmp_path_factory.mktemp("local") / "run"
    carp.train(shards, out, recipe, quiet=True)
    return out


def after(relay: Relay, requests: int, *, pause: float | None) -> threading.Thread:
    """Let the server die after some more requests, and return after a pause."""
    last = relay.requests + requests

    def watch() -> None:
        while relay.requests < last:
            time.sleep(0.005)
        relay.die()
        if pause is not None:
            time.sleep(pause)
            relay.rise()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_server_that_dies_and_returns_mid_epoch_changes_no_bit(
    s3: Relay, shards: Path, recipe: Path, local: Path, tmp_path: Path
) -> None:
    """Without a cache every image is a request."""
    upload(shards, "dies")
    source = open_source("s3://dies/shard-*.tar", cache_gb=0)
    dying = after(s3, 20, pause=0.3)
    carp.train(source, tmp_path / "run", recipe, quiet=True)
    dying.join(5)
    assert not dying.is_alive(), "the server did not die"
    assert_same_run(tmp_path / "run", local)


def test_a_server_that_stays_away_stops_the_run_which_resumes_exactly(
    web: tuple[Relay, str], recipe: Path, local: Path, tmp_path: Path
) -> None:
    relay, address = web
    address += "/shard-{000..003}.tar"
    run = tmp_path / "run"
    dying = after(relay, 45, pause=None)  # 9 of them for the index, then one per image
    with pytest.raises(StorageError, match=r"Rerun the same command"):
        carp.train(address, run, recipe, quiet=True, cache_gb=0)
    dying.join(5)
    assert 0 < steps_of(run)[-1] < 8, "it saved itself before the end"
    relay.rise()
    carp.train(address, run, recipe, quiet=True)  # with a cache this time
    assert_same_run(run, local)


@pytest.mark.parametrize("kind", ["", "tar:"])
def test_a_feature_store_opens_no_connection_unless_the_address_is_given(
    kind: str, web: tuple[Relay, str], local: Path, tmp_path: Path
) -> None:
    """Its origin may have been written by someone else."""
    data = f"{kind}{web[1]}/shard-000.tar"
    store = carp.embed(local, data, tmp_path / "store", quiet=True)
    store.origin.data["name"] = data
    before = web[0].connections
    with pytest.raises(DataError, match=r"on a server.*--data"):
        StoredImages(store).fetch(0, "absent")
    assert web[0].connections == before
    assert StoredImages(store, data).fetch(3, "absent") == open_source(data).fetch(3)


def test_no_secret_is_written_or_printed(
    web: tuple[Relay, str],
    cli: Cli,  # noqa: F811
    recipe: Path,
    tmp_path: Path,
) -> None:
    data = f"{web[1].replace('//', '//user:hunter2@')}/shard-{{000..003}}.tar?X-Amz-Signature=hunter3"
    run = tmp_path / "run"
    words = ("train", data, "--recipe", recipe, "--out", run, "--val", data, "global_size=32", "epochs=1")
    code, out, err = cli(*words)
    assert code == 0, err
    code, again, more = cli(*words)  # the finished run is recognised with the same arguments
    assert code == 0, more
    web[0].die()
    code, _, failed = cli("eval", "knn", run, "--data", data)
    assert code == 7
    assert failed.count("carp: error") == 1
    assert "hunter" not in out + err + again + more + failed
    files = [path for path in run.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"hunter" in path.read_bytes()]
