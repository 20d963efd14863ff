"""A device without float64 trains and evaluates: nothing there may need double precision."""

from pathlib import Path

import numpy as np
import pytest
import torch

import carp
from carp.compute.device import best_precision, check_precision, deterministic, products_in
from carp.errors import ConfigError
from carp.readiness.pretended_device import OnDevice, pretended
from carp.runs.metrics_log import read_metrics
from carp.training.health import measure
from tests.helpers import TINY, assert_same_bits, final_tensors, tiny_images, write_images

SETTINGS = {**TINY, "epochs": 1, "health_steps": 1, "num_prototypes": 32, "precision": "fp32"}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    images = rng.normal(128, 20, (36, 32, 32, 3)) + rng.normal(0, 40, (3, 1, 1, 3))[np.arange(36) % 3]
    return write_images(tmp_path_factory.mktemp("labelled"), np.clip(images, 0, 255).astype(np.uint8), classes=3)


def test_the_pretended_device_refuses_what_the_real_one_does() -> None:
    with pretended() as device:
        x = torch.ones(3, device=device) + 1
        assert isinstance(x, OnDevice)
        assert x.device.type == "mps"
        for make in (x.double, lambda: torch.zeros(2, dtype=torch.float64, device=device)):
            with pytest.raises(TypeError, match="float64"):
                make()
        with pytest.raises(TypeError, match="CPU"):
            x.numpy()
        assert not isinstance(x.cpu(), OnDevice)
        assert x.cpu().double().tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_health_is_measured_without_float64(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    z, prototypes, partition = torch.randn(2, *shape), torch.randn(32, shape[1]), torch.randperm(32).view(4, 8)
    expected = measure(3.0, 0.5, z, prototypes, partition)
    with pretended() as device:
        assert measure(3.0, 0.5, z.to(device), prototypes.to(device), partition.to(device)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"optimiser": "adamw", "lr": 0.001}, marks=pytest.mark.slow),
        pytest.param({"micro_batch": 8, "clip_gradient": 1.0}, marks=pytest.mark.slow),
    ],
    ids=["lars", "adamw", "micro-batches"],
)
def test_a_run_with_health_and_validation_needs_no_float64(
    changes: dict[str, object], labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.training.planning.memory_check.available_memory", lambda _: 2**33)
    monkeypatch.setattr("carp.training.loop.prepare_for_cpu", lambda model: model)  # both convolve alike
    settings = {**SETTINGS, "validation": str(labelled), **changes}
    carp.train(tiny_images(32), tmp_path / "cpu", quiet=True, **settings)
    with pretended():
        carp.train(tiny_images(32), tmp_path / "mps", quiet=True, **{**settings, "device": "mps"})
    assert read_metrics(tmp_path / "mps" / "metrics.jsonl") == read_metrics(tmp_path / "cpu" / "metrics.jsonl")
    assert_same_bits(final_tensors(tmp_path / "mps"), final_tensors(tmp_path / "cpu"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    carp.train(tiny_images(32), folder, quiet=True, **SETTINGS)
    return folder


@pytest.mark.parametrize("protocol", ["knn", "linear", "kmeans", "few-shot", "images"])
def test_protocols_need_no_float64(protocol: str, run: Path, labelled: Path, tmp_path: Path) -> None:
    own = {
        "knn": {"k": 3},
        "linear": {"cached": True, "epochs": 2, "batch_size": 16},
        "images": {"epochs": 2, "batch_size": 16, "lrs": (1, 10)},
        "few-shot": {"shots": (1,), "runs": 1},
        "kmeans": {"seeds": (0,)},
    }[protocol]
    name = "linear" if protocol == "images" else protocol
    options = {"test": labelled, "quiet": True, "branch": "teacher", **own}
    found = []
    for device in ("cpu", "mps"):
        with pretended():
            out = {"out": tmp_path / device, "predictions": tmp_path / f"{device}.csv", "device": device}
            found.append(carp.evaluate(name, run, labelled, **out, **options).values)
    assert found[0] == found[1]
    predicted = [(tmp_path / f"{device}.csv").read_text() for device in ("cpu", "mps")]
    assert predicted[0] == predicted[1]
    assert len(predicted[0].splitlines()) == 37


def test_deterministic_operations_change_nothing_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    for name, wanted in (("plain", False), ("deterministic", True)):
        carp.train(tiny_images(32), tmp_path / name, quiet=True, **SETTINGS, deterministic=wanted)
    assert_same_bits(final_tensors(tmp_path / "plain"), final_tensors(tmp_path / "deterministic"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_a_deterministic_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with pytest.raises(ConfigError, match=r"put_ does not have .*\. Use deterministic=false"), deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
        torch.zeros(3).put_(torch.tensor([1]), torch.tensor([1.0]))
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="something else"), deterministic(True):
        raise RuntimeError("something else")


def test_tf32_is_refused_where_there_is_none_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision=tf32 needs .*cpu.* Use precision=fp32 or bf16"):
        carp.train(tiny_images(), tmp_path / "run", quiet=True, **{**TINY, "precision": "tf32", "device": "cpu"})
    assert not (tmp_path / "run").exists()
    check_precision("fp32", torch.device("cpu"))


@pytest.mark.parametrize(
    ("device", "capability", "has_bf16", "expected"),
    [
        ("cpu", None, True, "bf16"),
        ("cpu", None, False, "fp32"),
        ("mps", None, True, "fp32"),
        ("cuda", (9, 0), False, "bf16"),
        ("cuda", (7, 5), True, "fp16"),
    ],
)
def test_the_best_precision_is_one_that_the_device_computes_in(
    device: str, capability: tuple[int, int] | None, has_bf16: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.compute.device.cpu_computes_bf16", lambda: has_bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert best_precision(torch.device(device)) == expected


def test_a_run_records_the_precision_it_began_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = {**SETTINGS, "precision": "auto", "device": "cpu"}

    def train(has_bf16: bool) -> str:
        monkeypatch.setattr("carp.compute.device.cpu_computes_bf16", lambda: has_bf16)
        return carp.train(tiny_images(32), tmp_path / "run", quiet=True, **settings).config.precision

    assert train(False) == "fp32"
    assert train(True) == "fp32"  # resumed on another machine


@pytest.mark.parametrize(("has_bf16", "warned"), [(False, True), (True, False)])
def test_emulated_half_precision_is_reported(
    has_bf16: bool, warned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("carp.compute.device.cpu_computes_bf16", lambda: has_bf16)
    carp.train(tiny_images(32), tmp_path / "run", **{**SETTINGS, "precision": "bf16", "device": "cpu"})
    assert ("precision=auto" in capsys.readouterr().err) == warned


def test_products_are_in_tf32_only_inside_the_block() -> None:
    def now() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = now()
    with products_in("bf16"):
        assert now() == before
    with pytest.raises(ZeroDivisionError), products_in("tf32"):
        assert now() == (True, True)
        raise ZeroDivisionError
    assert now() == before
