"""`carp check` finds every damaged file of a run, its features, its index and its exports."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import carp
from carp.commands.index import index
from carp.errors import DataError
from tests.commands.conftest import Cli, assert_one_line
from tests.encoders.foreign.layouts import narrow, released


@pytest.fixture(scope="module")
def everything(run: Path, labelled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with stored features, a result, an index and exports. Copy it before you change it."""
    out = Path(shutil.copytree(run, tmp_path_factory.mktemp("everything") / "run"))
    carp.evaluate("knn", out, labelled, k=3)
    carp.embed(out, labelled, out / "store")
    index(out / "store")
    for form, name in (("safetensors", "a.safetensors"), ("onnx", "a.onnx")):
        carp.export(out, out / "exports" / name, format=form)
    torch.save(released("simclr", narrow().state_dict())[0], out.parent / "simclr.pth")
    carp.export(f"simclr:{out.parent / 'simclr.pth'}", out / "exports" / "timm", format="timm")
    return out


@pytest.fixture
def folder(everything: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(everything, tmp_path / "run"))


def verdicts(folder: Path) -> dict[str, str]:
    return {file.path: file.verdict for file in carp.check_folder(folder).files}


def test_a_sound_folder_is_ok_file_by_file(everything: Path, cli: Cli) -> None:
    found = verdicts(everything)
    (features,) = {Path(path).parent.name for path in found if path.startswith("features/")}
    expected = {
        **{f"{store}/{name}": "ok" for store in (f"features/{features}", "store") for name in
           ("features.npy", "labels.npy", "places.jsonl", "store.json")},
        **dict.fromkeys(("store/index/index.json", "store/index/vectors.faiss"), "ok"),
        **{f"checkpoints/{path.name}": "ok" for path in (everything / "checkpoints").iterdir()},
        **{f"index/{path.name}": "ok" for path in (everything / "index").iterdir()},
        **{f"results/{path.name}": "readable" for path in (everything / "results").iterdir()},
        **dict.fromkeys(("config.yaml", "run.json", "metrics.jsonl", "threads.jsonl", "exports/a.onnx"), "readable"),
        **{"plots.png": "ok", "exports/a.safetensors": "ok", "exports/timm/model.safetensors": "ok"},
        "exports/timm/config.json": "readable",
    }  # fmt: skip
    assert found == expected
    code, out, err = cli("check", everything)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == len(found) + 1
    assert "nothing is damaged" in out.splitlines()[-1]


@pytest.mark.parametrize(
    "name",
    [
        "store/features.npy",
        "store/labels.npy",
        "store/places.jsonl",
        "store/store.json",
        "store/index/vectors.faiss",
        "store/index/index.json",
        "exports/a.safetensors",
        "exports/timm/model.safetensors",
        "checkpoints/*/tensors.safetensors",
        "checkpoints/*/manifest.json",
        "index/*.index",
        "results/*.json",
        "run.json",
        "threads.jsonl",
        "plots.png",
    ],
)
@pytest.mark.parametrize("how", ["flipped", "cut"])
def test_a_damaged_file_is_named_and_the_exit_code_says_so(folder: Path, cli: Cli, name: str, how: str) -> None:
    path = sorted(folder.glob(name))[-1]
    content = bytearray(path.read_bytes())
    content[-min(len(content), 40)] ^= 0x80
    path.write_bytes(content if how == "flipped" else content[:-3])
    code, out, err = cli("check", folder)
    assert (code, err) == (1, "")
    shown = str(path.relative_to(folder))
    shown = str(Path(shown).parent) if shown.startswith("checkpoints/") else shown
    damaged = [line for line in out.splitlines() if line.startswith("damaged")]
    assert any(shown in line for line in damaged), out
    as_json = json.loads(cli("check", folder, "--json")[1])
    assert as_json["ok"] is False


def test_metrics_are_compared_with_the_checkpoint(folder: Path) -> None:
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(content[: len(content) // 2])
    (file,) = [file for file in carp.check_folder(folder).files if file.path == "metrics.jsonl"]
    assert file.verdict == "damaged"
    assert f"{len(content):,} bytes" in file.detail


def test_old_stores_and_leftovers_are_said_to_be_so(folder: Path) -> None:
    for path in (folder / "store" / "store.json", folder / "store" / "index" / "index.json"):
        manifest = json.loads(path.read_text())
        del manifest["files"], manifest["sha256"]
        path.write_text(json.dumps(manifest))
    (folder / "store" / ".unfinished-features.csv").write_text("")
    found = carp.check_folder(folder / "store")
    assert found.ok
    about = {file.path: file for file in found.files}
    for name in ("features.npy", "store.json", "index/vectors.faiss"):
        assert about[name].verdict == "readable"
        assert "without digests" in about[name].detail
    assert about[".unfinished-features.csv"].verdict == "unfinished"


def test_single_files_and_mistakes(everything: Path, tmp_path: Path, cli: Cli) -> None:
    assert verdicts(everything / "exports" / "a.safetensors") == {"a.safetensors": "ok"}
    (checkpoint, *_) = sorted((everything / "checkpoints").iterdir())
    assert verdicts(checkpoint) == {checkpoint.name: "ok"}
    assert_one_line(cli("check", tmp_path / "missing"), "no file or folder")
    (tmp_path / "notes.txt").write_text("")
    assert_one_line(cli("check", tmp_path), "nothing that CARP wrote", "run folder")
    with pytest.raises(DataError):
        carp.check_folder(tmp_path)
