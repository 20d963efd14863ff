"""`hf://datasets/OWNER/NAME`, through the real client and a server that answers as the Hub does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from carp.errors import DataError
from carp.images.open_source import open_source
from tests.helpers import tiny_images
from tests.images.test_tar_shards import png
from tests.remote.servers import Handler, web_server
from tests.remote.test_remote_shards import everything

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
REPOSITORY = "datasets/owner/name"


class Hub(Handler):
    """The routes of the Hub that its file system uses, for one dataset; files are in the folder of its path."""

    def send_head(self) -> Any:
        path = unquote(urlsplit(self.path).path)
        marker = f"/{REPOSITORY}/resolve/main/"
        if path.startswith(marker):
            self.path = f"/{REPOSITORY}/{path.removeprefix(marker)}"
            return super().send_head()
        if path == f"/api/{REPOSITORY}" or path.startswith(f"/api/{REPOSITORY}/revision/"):
            return self._answer({"id": "owner/name", "sha": "0" * 40, "siblings": []})
        if path.startswith(f"/api/{REPOSITORY}/tree/main"):
            return self._answer(self._entries(path.removeprefix(f"/api/{REPOSITORY}/tree/main").strip("/")))
        self.send_error(404)
        return None

    def do_POST(self) -> None:  # noqa: N802 - the name that the standard library wants
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._answer([entry for entry in self._entries("") if entry["path"] in unquote(asked)])

    def _entries(self, below: str) -> list[dict[str, Any]]:
        root = Path(self.directory) / REPOSITORY
        every = sorted(path for path in root.rglob("*") if str(path.relative_to(root)).startswith(below))
        return [
            {"type": "directory", "oid": "d", "size": 0, "path": str(path.relative_to(root))}
            if path.is_dir()
            else {"type": "file", "oid": path.name, "size": path.stat().st_size, "path": str(path.relative_to(root))}
            for path in every
        ]

    def _answer(self, value: Any) -> None:
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A dataset on the Hub with two splits."""
    folder = tmp_path / REPOSITORY / "data"
    folder.mkdir(parents=True)
    images = [png(pixels) for pixels in tiny_images(6)]
    for name, rows in (
        ("train-00000-of-00002", images[:2]),
        ("train-00001-of-00002", images[2:4]),
        ("test", images[4:]),
    ):
        table = pa.Table.from_pylist([{"image": {"bytes": row, "path": None}} for row in rows])
        pq.write_table(table, folder / f"{name}.parquet")
    with web_server(tmp_path, Hub) as (port, _):
        endpoint = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        files = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        huggingface_hub.HfFileSystem.clear_instance_cache()
        yield folder


@pytest.mark.parametrize("cache_gb", [0, 1])
def test_a_dataset_of_the_hub_is_its_training_split(dataset: Path, cache_gb: float) -> None:
    source = open_source("hf://datasets/owner/name", cache_gb=cache_gb)
    local = open_source(dataset / "train-*.parquet")
    assert source.fingerprint == local.fingerprint
    assert everything(source) == everything(local)
    test = open_source("hf://datasets/owner/name/data/test.parquet", cache_gb=cache_gb)
    assert everything(test) == everything(open_source(dataset / "test.parquet"))


def test_several_configurations_must_be_told_apart(dataset: Path) -> None:
    other = dataset.parent / "large"
    other.mkdir()
    (dataset / "train-00000-of-00002.parquet").rename(other / "train-0.parquet")
    with pytest.raises(DataError, match=r"several configurations .*name/data, .*name/large.*give the files of one"):
        open_source("hf://datasets/owner/name")
