"""Packaged weights, networks of timm by name or folder, and the Hub: every form of weights besides a plain file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import carp
from carp.encoders import hub
from carp.encoders.foreign import foreign_encoder
from carp.encoders.packaged import PACKAGED, PackagedWeights
from carp.errors import CheckpointError, MissingExtraError
from carp.model.own_normalisation import without_normalisation
from carp.restricted.checkpoint_file import read_checkpoint
from tests.commands.conftest import Cli, assert_one_line

LITE0 = PACKAGED["lite0"]
installed = pytest.mark.skipif(LITE0.find() is None, reason="the extra [start] is not installed")
NAME = "mobilenetv3_small_050"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the weights of a small network of timm, with its classifier."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_file(timm.create_model(NAME, num_classes=5).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def folder(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as the Hub has them, with a mean of their own."""
    path = tmp_path_factory.mktemp("hub") / "model"
    path.mkdir()
    shutil.copy(small, path / "model.safetensors")
    images = {"mean": [0.4, 0.5, 0.6], "std": [0.3, 0.3, 0.3], "input_size": [3, 96, 96], "interpolation": "bilinear"}
    (path / "config.json").write_text(json.dumps({"architecture": NAME, "num_classes": 5, "pretrained_cfg": images}))
    return path


def images(side: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, side, side, 3), dtype=np.uint8)


@installed
def test_every_tensor_of_lite0_has_its_place() -> None:
    stored = read_checkpoint(LITE0.path())
    encoder, weights = foreign_encoder(LITE0.path(), LITE0.method)
    network = without_normalisation(encoder)
    assert len(stored) == 296
    assert weights.unexpected == ()
    assert set(weights.leftovers) == {"_fc.weight", "_fc.bias"}
    assert len(weights.tensors) + sum(n.endswith("num_batches_tracked") for n in stored) + 2 == 296
    # By name, not by order: a few whose places are easily confused
    state = network.state_dict()
    for theirs, ours in {
        "_bn1.weight": "bn2.weight",
        "_blocks.0._bn2.running_var": "blocks.0.0.bn2.running_var",
        "_blocks.10._bn1.bias": "blocks.4.2.bn2.bias",
        "_blocks.15._project_conv.weight": "blocks.6.0.conv_pwl.weight",
    }.items():
        assert torch.equal(state[ours], stored[theirs])


@installed
@pytest.mark.parametrize(("photo", "classes"), [("chelsea", {281, 282, 285}), ("coffee", {504, 967, 968})])
def test_lite0_recognises_photographs(photo: str, classes: set[int]) -> None:
    data = pytest.importorskip("skimage.data", reason="scikit-image has the photographs")
    stored = read_checkpoint(LITE0.path())
    features = torch.from_numpy(carp.load("lite0").embed(getattr(data, photo)()))
    scores = features @ stored["_fc.weight"].T + stored["_fc.bias"]
    assert int(scores.argmax()) in classes


@installed
def test_lite0_is_a_model_like_any_other(tmp_path: Path) -> None:
    encoder = carp.load("lite0", size=32)
    assert (encoder.name, encoder.path, encoder.size) == ("lite0", "lite0", 32)
    store = carp.embed("lite0", images(), tmp_path / "features", size=32)
    assert np.array_equal(store.features, encoder.embed(images()))
    exported = carp.export("lite0", tmp_path / "lite0.safetensors", format="safetensors")
    assert exported.about["mean"] == [0.498] * 3
    again = carp.load(tmp_path / "lite0.safetensors", size=32).embed(images())
    assert np.allclose(again, store.features, atol=1e-4)


@installed
def test_no_model_is_lite0_and_one_line_says_so(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    code, out, err = cli("embed", "--data", labelled, "--out", tmp_path / "features", "--size", 32)
    assert code == 0
    assert "lite0" in err
    assert len([line for line in err.splitlines() if "no model was given" in line]) == 1
    code, out, err = cli("eval", "knn", "--data", labelled, "--size", 32, "--out", tmp_path / "eval")
    assert code == 0, err
    assert "using lite0" in err
    assert "lite0" in out
    code, _, err = cli("eval", "knn", "--data", tmp_path / "features", "--out", tmp_path / "stored")
    assert code == 0, err
    assert "using lite0" not in err  # stored features need no model
    code, out, err = cli("duplicates", labelled, "--size", 32, "--out", tmp_path / "copies")
    assert code == 0, err
    assert "using lite0" in err


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackagedWeights, "find", lambda _: None)


@pytest.mark.usefixtures("nowhere")
def test_a_missing_package_is_named_with_its_command(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for words in (
        ["embed", "lite0", "--data", labelled],
        ["embed", "--data", labelled],
        ["eval", "knn", "--data", labelled],
        ["duplicates", labelled, "--model", "lite0"],
    ):
        assert_one_line(cli(*words, "--out", out), "lite0", "pip install 'carp-ssl[start]'")
        assert not out.exists()
    with pytest.raises(MissingExtraError):
        carp.load("lite0")


@installed
def test_a_run_or_a_file_of_the_same_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lite0").mkdir()  # the output folder of `carp eval lite0`
    assert carp.load("lite0", size=32).name == "lite0"
    shutil.copytree(run, tmp_path / "lite0", dirs_exist_ok=True)
    assert carp.load("lite0").branch == "teacher"


def test_a_network_of_timm_by_its_name(small: Path) -> None:
    expected = timm.create_model(NAME, num_classes=0)
    state = read_checkpoint(small)
    expected.load_state_dict({name: t for name, t in state.items() if not name.startswith("classifier.")})
    encoder = carp.load(f"timm:{NAME}:{small}", size=40)
    x = torch.randn(2, 3, 40, 40)
    with torch.inference_mode():
        assert torch.allclose(encoder.module(x), expected.eval()(x), atol=1e-5)
    assert encoder.path == f"timm:{NAME}:{small}"
    assert carp.weights(f"timm:{NAME}:{small}").as_dict()["architecture"] == NAME


def test_a_vision_transformer_of_timm_takes_other_sizes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    name, path = "vit_tiny_patch16_224", tmp_path / "vit.safetensors"
    network = timm.create_model(name, depth=1)
    save_file(network.state_dict(), path)
    # The depth is not part of the name
    with pytest.raises(CheckpointError, match="not in the format of timm:vit_tiny_patch16_224"):
        carp.load(f"timm:{name}:{path}")
    (tmp_path / "model").mkdir()
    shutil.copy(path, tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "config.json").write_text(json.dumps({"architecture": name, "model_args": {"depth": 1}}))
    assert carp.load(tmp_path / "model", size=48).embed(images()).shape == (3, 192)


def test_a_folder_describes_its_own_images(folder: Path) -> None:
    encoder = carp.load(folder)
    assert (encoder.size, encoder.interpolation, encoder.name) == (96, "bilinear", "model")
    found = carp.weights(folder).as_dict()
    assert (found["method"], found["size"]) == (f"timm:{NAME}", 96)
    normalised = np.full((1, 96, 96, 3), 255, dtype=np.uint8)
    plain, _ = foreign_encoder(folder)
    white = (1 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.3
    with torch.inference_mode():
        expected = without_normalisation(plain)(white.expand(1, 3, 96, 96).contiguous())
    assert np.allclose(encoder.embed(normalised), expected.numpy(), atol=1e-4)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{", "does not describe"),
        ('{"architectures": ["Dinov2Model"]}', "does not describe"),
        ('{"architecture": "no_such_network"}', "timm does not have"),
        ('{"architecture": "resnet18", "model_args": {"checkpoint_path": "/etc/passwd"}}', "checkpoint_path"),
        ('{"architecture": "resnet18", "model_args": {"layers": "x"}}', "cannot build"),
    ],
)
def test_a_folder_that_describes_nothing_is_refused(config: str, said: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(config)
    with pytest.raises(carp.CarpError, match=said):
        carp.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("timm:resnet_18:{file}", "timm has no network 'resnet_18'. Did you mean"),
        ("timm:resnet18:{file}", "resnet18"),
        ("hf:no-owner", "hf:OWNER/NAME"),
        ("hf:../../etc/passwd", "hf:OWNER/NAME"),
    ],
)
def test_mistakes_are_one_line(model: str, said: str, small: Path, labelled: Path, cli: Cli, tmp_path: Path) -> None:
    words = ["embed", model.format(file=small), "--data", labelled, "--out", tmp_path / "out"]
    assert_one_line(cli(*words), said)
    assert not (tmp_path / "out").exists()


def test_the_hub_is_used_through_its_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the Hub: the cache as its library keeps it, and no network."""
    repository = tmp_path / "models--owner--name"
    shutil.copytree(folder, repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123456789abcdef0123456789abcdef01234567")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.hub_folder.cache_clear()
    encoder = carp.load("hf:owner/name")
    assert (encoder.name, encoder.path, encoder.size) == ("name", "hf:owner/name", 96)
    with pytest.raises(CheckpointError, match="cannot be downloaded") as error:
        carp.load("hf:owner/other")
    assert "\n" not in str(error.value)
    hub.hub_folder.cache_clear()
