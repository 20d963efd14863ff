"""Remote Parquet files and lists, and what a list from elsewhere may name."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from carp.errors import DataError, StorageError, UnreadableImageError
from carp.images.open_source import open_source
from tests.helpers import tiny_images, write_images
from tests.images.test_tar_shards import png
from tests.remote.servers import Relay, upload, web_server
from tests.remote.test_remote_shards import everything


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two files with two row groups each."""
    folder = tmp_path / "tables"
    folder.mkdir()
    images = [png(pixels) for pixels in tiny_images(12)]
    for i in range(2):
        rows = [
            {"image": {"bytes": image, "path": None}, "label": j % 2} for j, image in enumerate(images[6 * i :][:6])
        ]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"train-{i}.parquet", row_group_size=3)
    return folder


def test_parquet_files_of_a_bucket_are_those_of_the_folder(s3: Relay, tables: Path, private_cache: Path) -> None:
    upload(tables, "tables")
    local = open_source(tables)
    for number, cache_gb in enumerate([0.0, None]):
        source = open_source("s3://tables", cache_gb=cache_gb)
        assert source.fingerprint == local.fingerprint
        assert not private_cache.exists(), "the description is read by range requests"
        assert everything(source) == everything(local)
        assert len(list(private_cache.glob("*.shard"))) == 2 * number
    assert source.place(7) == "s3://tables/train-1.parquet: row 1"


def test_a_broken_answer_to_a_parquet_reader_is_retried_and_then_stops(web_tables: tuple[Relay, str]) -> None:
    relay, address = web_tables
    source = open_source(f"{address}/train-{{0..1}}.parquet", cache_gb=0)
    relay.die()
    with pytest.raises(StorageError, match=r"train-0\.parquet.*Rerun the same command"):
        source.fetch(0)


@pytest.fixture
def web_tables(tables: Path):  # type: ignore[no-untyped-def]
    with web_server(tables) as (port, _):
        relay = Relay(port)
        yield relay, f"http://127.0.0.1:{relay.port}"
        relay.die()


def test_a_list_names_images_beside_it_and_elsewhere(tmp_path: Path) -> None:
    write_images(tmp_path / "a b#1", tiny_images(3))
    with web_server(tmp_path) as (port, _):
        address = f"http://127.0.0.1:{port}"
        names = ["a b#1/000.png", f"{address}/a b%231/001.png?X-Amz-Signature=secret", "a b#1/002.png"]
        (tmp_path / "list.txt").write_text("\n".join([*names, "absent.png", f"{address}/status-403/x.png"]))
        for source in (open_source(f"{address}/list.txt?sig=secret"), open_source(tmp_path / "list.txt")):
            local = [path.read_bytes() for path in sorted((tmp_path / "a b#1").iterdir())]
            assert [source.fetch(i) for i in range(3)] == local
            for bad in (3, 4):
                with pytest.raises(UnreadableImageError, match=r"there is no such file|access is refused"):
                    source.fetch(bad)
            source.keep_index(tmp_path / "index")
            said = [source.name, *(f"{source.place(i)} {source.short_name(i)}" for i in range(5))]
            assert "secret" not in "".join(said)
        assert not (tmp_path / "index").exists(), "secrets of a list are written nowhere"


def test_a_web_server_without_size_or_with_an_empty_image(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "list.txt").write_text("empty.png\n")
    with web_server(tmp_path) as (port, _):
        assert open_source(f"http://127.0.0.1:{port}/list.txt").fetch(0) == b""


@pytest.mark.parametrize(
    "line",
    ["/etc/passwd.png", "file:///etc/x.png", "local:///etc/x.png", "~/x.png", "zip://a.png::/etc/x.zip",
     "\\\\host\\x.png", "simplecache::https://host/x.png", "memory://x.png", "c:x.png"],
)  # fmt: skip
def test_a_remote_list_may_not_name_files_of_this_machine(line: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"fine.png\n{line}\n")
    with (
        web_server(tmp_path) as (port, _),
        pytest.raises(DataError, match=r"list\.txt, line 2: .* (not on a server|not an address)"),
    ):
        open_source(f"http://127.0.0.1:{port}/list.txt")


@pytest.mark.parametrize("line", ["quux://host/x.png", "zip://x.png::http://127.0.0.1:9/x.zip"])
def test_a_local_list_may_name_files_of_servers_but_nothing_else_of_fsspec(line: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"fine.png\n{line}\n")
    with pytest.raises(DataError, match=r"list\.txt, line 2: .*not an address that a list may"):
        open_source(tmp_path / "list.txt")


def test_an_address_of_a_local_file_is_its_path(tables: Path) -> None:
    assert open_source(f"file://{tables}").fingerprint == open_source(tables).fingerprint
