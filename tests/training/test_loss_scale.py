"""Loss scaling: the rule of torch's own, and steps that are skipped without a trace."""

import json
import math

import pytest
import torch

from carp.errors import NonFiniteError
from carp.runs.metrics_log import read_metrics
from carp.training.loss_scale import LossScale
from tests.faults.test_numbers import training
from tests.helpers import assert_same_bits, steps_of


def test_the_scale_is_that_of_torch() -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimiser = torch.optim.SGD([parameter], lr=0.0)
    theirs, ours = torch.amp.GradScaler("cpu"), LossScale(active=True)
    theirs.scale(torch.ones(()))  # it is lazy
    assert ours.value == theirs.get_scale()
    seen = [ours.value]
    for step in range(4100):
        overflows = step in {0, 3, 4, 2006}
        parameter.grad = torch.tensor([math.inf if overflows else 1.0])
        theirs.step(optimiser)
        theirs.update()
        ours.update(overflowed=overflows)
        assert ours.value == theirs.get_scale(), step
        if ours.value != seen[-1]:
            seen.append(ours.value)
    assert seen == [2**16, 2**15, 2**14, 2**13, 2**14, 2**13, 2**14]


def test_other_precisions_have_no_scale() -> None:
    scale = LossScale(active=False)
    scale.update(overflowed=True)
    assert scale.value == 1.0
    assert not scale.can_fall
    assert scale.state() == {}


def test_a_state_is_restored() -> None:
    scale, other = LossScale(active=True), LossScale(active=True)
    scale.update(overflowed=True)
    for _ in range(1999):
        scale.update(overflowed=False)
    other.restore(json.loads(json.dumps(scale.state())))
    assert other.state() == scale.state()
    other.update(overflowed=False)
    assert other.value == 2 * scale.value


def overflowing(run, *steps):
    """Make the gradient of one weight infinite in these steps; return the steps that were seen."""
    seen = []

    def hook(gradient):
        seen.append(None)
        return gradient * (math.inf if len(seen) - 1 in steps or not steps else 1.0)

    next(p for name, p in run.model.named_parameters() if name.endswith("conv2.weight")).register_hook(hook)
    return seen


def weights(run):
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_overflows_changes_no_weight_and_the_next_one_does(tmp_path, when) -> None:
    run = training(tmp_path / "run", precision="fp16", teacher_update=when)
    overflowing(run, 0, 2)
    run.model.train()
    for batch in run.loader.batches(0, 4):
        before = weights(run)
        result = run.stepper(batch)
        assert result.finite
        assert math.isfinite(result.loss)
        assert result.applied is (batch.step in {1, 3})
        if result.applied:
            assert any(not torch.equal(p, before[name]) for name, p in weights(run).items())
        else:
            assert_same_bits(weights(run), before)
    assert run.stepper.loss_scale.value == 2**14


def test_the_scale_changes_no_gradient_that_does_not_overflow(tmp_path) -> None:
    norms = []
    for place, scale in enumerate((2.0**4, 2.0**8)):
        run = training(tmp_path / str(place), precision="fp16")
        run.stepper.loss_scale.value = scale
        run.model.train()
        norms.append(run.stepper(next(iter(run.loader.batches(0, 1)))).gradient_norm)
    exact = training(tmp_path / "exact")
    exact.model.train()
    norms.append(exact.stepper(next(iter(exact.loader.batches(0, 1)))).gradient_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)
    assert norms[0] == pytest.approx(norms[2], rel=2e-2)


def test_skipped_steps_are_logged(tmp_path) -> None:
    run = training(tmp_path / "run", precision="fp16", epochs=1)
    overflowing(run, 0, 2)
    run.run()
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [(line["step"], line["loss_scale"]) for line in lines if line.get("skipped")] == [(0, 2**15), (2, 2**14)]
    steps = [line for line in lines if "loss" in line]
    assert [line["gradient_norm"] is None for line in steps] == [True, False, True, False]
    assert [line["loss_scale"] for line in steps] == [2**15, 2**15, 2**14, 2**14]
    assert not (tmp_path / "run" / "post-mortem.json").exists()


def test_a_gradient_that_always_overflows_ends_the_run(tmp_path) -> None:
    run = training(tmp_path / "run", precision="fp16", epochs=10)
    overflowing(run)
    before = weights(run)
    with pytest.raises(NonFiniteError, match="the gradient is not finite at step 16") as raised:
        run.run()
    assert "precision=fp32" in str(raised.value)
    assert_same_bits(weights(run), before)
    report = json.loads((tmp_path / "run" / "post-mortem.json").read_text())
    assert report["loss_scale"] == 1.0


def test_a_loss_that_is_not_finite_is_no_matter_of_the_scale(tmp_path) -> None:
    run = training(tmp_path / "run", precision="fp16")
    with torch.no_grad():
        next(run.model.student.projector.parameters())[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="the loss is not finite at step 0"):
        run.run()
    assert run.stepper.loss_scale.value == 2**16
    assert steps_of(tmp_path / "run") == []
