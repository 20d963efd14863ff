"""`carp export --format hf` and `carp push`: a folder that timm reads, a model card, an upload to a server."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import carp
from carp.runs.run_folder import open_run
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import TINY, tiny_images

# A network that timm builds by its name: CARP's small stem is not one
PLAIN = {**TINY, "encoder": "test_resnet", "encoder_options": {}, "stem": "encoder", "epochs": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("push") / "birds <script>"
    settings = {key: value for key, value in PLAIN.items() if key != "stem_stride"}
    return Path(carp.train(tiny_images(), folder, quiet=True, **settings).folder)


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as an upload needs; files arrive in the body of the commit."""

    files: dict[str, bytes]
    created: list[dict[str, object]]
    refuse = False

    def do_GET(self) -> None:
        self._answer({"id": "jane/birds", "sha": "0" * 40, "siblings": [], "type": "user", "name": "jane"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refuse or self.headers.get("Authorization") != "Bearer hf_right":
            self._answer({"error": "forbidden"}, 403)
        elif "/repos/create" in self.path:
            self.created.append(json.loads(body))
            self._answer({"url": f"{server_address(self.server)}/jane/birds", "id": "jane/birds", "name": "jane/birds"})
        elif "/preupload/" in self.path:
            wanted = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in wanted]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{server_address(self.server)}/jane/birds"
            self._answer({"success": True, "commitUrl": f"{address}/commit/{'1' * 40}", "commitOid": "1" * 40})
        else:
            self._answer({"validated": True})

    def _answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def server_address(server: object) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("TestHub", (Hub,), {"files": {}, "created": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    point_at(server_address(server), monkeypatch)
    yield handler
    server.shutdown()
    server.server_close()


def point_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(hf_api.constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_right")


def test_timm_reads_the_folder_and_the_card_describes_the_run(cli: Cli, trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    code, _, err = cli("export", trained, "--format", "hf", "--out", folder)
    assert code == 0, err
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md", "plots.png"}
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.rand(2, 3, 32, 32)
    config = open_run(trained).config
    mean, std = torch.tensor(config.mean), torch.tensor(config.deviation)
    with torch.inference_mode():
        theirs = network((images - mean[:, None, None]) / std[:, None, None])
    pixels = (images * 255).round().byte().permute(0, 2, 3, 1).numpy()
    assert np.abs(theirs.numpy() - carp.load(trained).embed(list(pixels))).max() < 0.05  # rounded pixels
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: timm")
    for words in ("64 images", "1 epochs", "`num_prototypes` | 64", "Diagnosis", "carp eval", "plots.png"):
        assert words in card, words
    assert "<script>" not in card
    assert cli("export", trained, "--format", "hf", "--out", folder)[0] == 0  # its own export is replaced
    (folder / "notes.txt").touch()
    assert_one_line(cli("export", trained, "--format", "hf", "--out", folder), "not replaced")


def test_transformers_reads_the_folder(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    done = carp.export(trained, tmp_path / "encoder", format="hf")
    network = transformers.AutoModel.from_pretrained(done.path).eval()
    images = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        pooled = network(images).pooler_output
        expected = timm.create_model(f"local-dir:{done.path}", pretrained=True).eval()(images)
    assert torch.allclose(pooled, expected, atol=1e-5)


def test_an_upload_arrives_whole(cli: Cli, trained: Path, tmp_path: Path, hub: type[Hub]) -> None:
    code, out, err = cli("push", trained, "jane/birds", "--private")
    assert code == 0, err
    assert "/jane/birds" in out
    assert hub.created[0].get("private") is True or hub.created[0].get("visibility") == "private"
    folder = carp.export(trained, tmp_path / "encoder", format="hf").path
    assert hub.files == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_mistakes_are_one_line(cli: Cli, trained: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    assert_one_line(cli("push", trained, "birds"), "OWNER/NAME")
    hub.refuse = True
    assert_one_line(cli("push", trained, "jane/birds"), "refused the upload to jane/birds (403)")
    point_at("http://127.0.0.1:9", monkeypatch)
    assert_one_line(cli("push", trained, "jane/birds"), "cannot reach the Hugging Face Hub", "--format hf")
