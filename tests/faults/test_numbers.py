"""Numbers that go wrong: not finite, or collapsed."""

import json
import re
from pathlib import Path

import pytest
import torch

import carp as carp_package
from carp.compute.device import choose_device
from carp.errors import CollapseError, NonFiniteError
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.training.display import TrainingDisplay
from carp.training.loop import Training
from tests.faults.conftest import Server
from tests.helpers import TINY, assert_same_bits, final_tensors, steps_of, tiny_images, write_recipe

# One small block, nothing that pulls towards even use of its prototypes, and large steps: all embeddings come to point
# the same way, whatever the seed and the rounding of the processor.
COLLAPSE = {
    "num_prototypes": 8,
    "teacher_momentum": 0.9,
    "entropy_weight": 0,
    "embedding_scale": 20,
    "lr": 1.0,
    "lr_scaling": "none",
    "health_steps": 2,
    "epochs": 15,
    "encoder_options": {**TINY["encoder_options"], "layers": [2, 2, 2, 2]},
}


def words_of(settings: dict[str, object]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def test_a_loss_that_is_not_finite_ends_the_run_with_a_post_mortem(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ["train", images, "--recipe", recipe, "--out", out, "lr=1e6", "lr_scaling=none", "checkpoint_steps=1"]
    code, output = carp.run(*words)
    assert code == 4, output
    (error,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    assert "Traceback" not in output
    report = json.loads((out / "post-mortem.json").read_text())
    assert report["step"] == steps_of(out)[-1]  # the failing step, and as many were done before it
    assert f"step {report['step']}" in error
    assert "was not applied" in error
    assert "lr" in error
    assert str(out / "post-mortem.json") in error
    assert len(report["images"]) == TINY["batch_size"]
    assert report["lr"] > 1e5


def training(folder: Path, **settings: object) -> Training:
    config = carp_package.config.resolve({**TINY, **settings}, num_images=64)
    loader = make_loader(ArraySource(tiny_images()), config)
    folder.mkdir()
    return Training(config, loader, folder, choose_device("cpu"), TrainingDisplay(quiet=True))


@pytest.mark.parametrize("step", [0, 1], ids=["with health", "without health"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_is_not_applied(tmp_path: Path, value: float, step: int) -> None:
    run = training(tmp_path / "run", health_steps=100)
    run.step = step
    with torch.no_grad():
        next(run.model.student.projector.parameters())[0, 0] = value
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    with pytest.raises(NonFiniteError, match=f"at step {step}: the step was not applied"):
        run.run()
    after = {name: p.detach() for name, p in run.model.named_parameters()}
    assert_same_bits(after, before)
    assert not run.optimiser.state
    report = json.loads((tmp_path / "run" / "post-mortem.json").read_text())
    assert report["step"] == step
    assert report["loss"] in {"nan", "inf"}
    assert report["parameters_with_bad_gradients"]
    assert set(report["parameters_with_bad_gradients"]) <= set(before)
    assert steps_of(tmp_path / "run") == []


def test_a_gradient_that_is_not_finite_names_its_parameter(tmp_path: Path) -> None:
    run = training(tmp_path / "run")
    name, parameter = next((n, p) for n, p in run.model.named_parameters() if n.endswith("conv1.weight"))
    parameter.register_hook(lambda gradient: gradient * float("inf"))
    before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
    with pytest.raises(NonFiniteError, match="the gradient is not finite at step 0"):
        run.run()
    assert_same_bits({n: p.detach() for n, p in run.model.named_parameters()}, before)
    report = json.loads((tmp_path / "run" / "post-mortem.json").read_text())
    assert report["parameters_with_bad_gradients"] == [name]


def test_on_collapse_stop_ends_the_run_with_cause_and_setting(
    carp: Server, images: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ["train", images, "--recipe", recipe, "--out", out, "on_collapse=stop", *words_of(COLLAPSE)]
    code, output = carp.run(*words)
    assert code == 3, output
    assert "Traceback" not in output
    (error,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    (stopped,) = steps_of(out)[-1:]
    assert 3 <= stopped < 60
    assert f"stopped at step {stopped}" in error
    assert "collapsed" in error
    assert re.search("the embeddings of all images|nearly all images", error), "the cause"
    assert re.search("(?i)lower lr|raise entropy_weight", error), "the setting"
    assert "on_collapse: stop" in error

    code, output = carp.run(*words)  # the same command says the same again
    assert code == 3, output
    (error,) = [line for line in output.splitlines() if line.startswith("carp: error:")]
    assert re.search("(?i)lower lr|raise entropy_weight", error)


def test_on_collapse_warn_goes_on_to_the_end(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", **COLLAPSE, on_collapse="warn")
    run = carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True)
    assert steps_of(run.folder)[-1] == 60
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line.get("health") == "collapsed" for line in lines) >= 3


@pytest.mark.slow
def test_a_collapsed_run_may_be_continued_with_warn_and_keeps_its_steps(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", **COLLAPSE)
    with pytest.raises(CollapseError):
        carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, on_collapse="stop")
    carp_package.train(tiny_images(), tmp_path / "run", recipe, quiet=True, on_collapse="warn")
    carp_package.train(tiny_images(), tmp_path / "unbroken", recipe, quiet=True, on_collapse="warn")
    assert_same_bits(final_tensors(tmp_path / "run"), final_tensors(tmp_path / "unbroken"))
    ours, theirs = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("run", "unbroken"))
    assert ours == theirs
