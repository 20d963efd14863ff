"""Exact accumulation is the undivided batch; fast accumulation is the mean of the micro-batches' losses."""

import copy

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.images.loading.loader import make_loader
from carp.images.sources.array import ArraySource
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

CPU = torch.device("cpu")
SETTINGS = {
    "epochs": 1,
    "batch_size": 24,
    "global_size": 32,
    "blur": [0, 0, 0],
    "encoder": "resnet18",
    "encoder_options": {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_type": "deep", "stem_width": 4},
    "projector_hidden": 32,
    "embedding": 16,
    "embedding_scale": 5.0,
    "num_prototypes": 64,
    "block_size": 8,
    "entropy_weight": 5.0,
    "optimiser": "sgd",
    "lr": 0.05,
}


def without_batch_norm(module):
    """Replace every batch norm by a norm over the channels of one image."""
    for name, child in module.named_children():
        if isinstance(child, torch.nn.modules.batchnorm._BatchNorm):
            setattr(module, name, torch.nn.GroupNorm(1, child.num_features))
        elif type(child).__name__ == "BatchNormAct2d":
            raise AssertionError("unexpected layer")
        else:
            without_batch_norm(child)


def train(steps, *, batch_norm=False, **settings):
    images = np.random.default_rng(0).integers(0, 256, (48, 32, 32, 3), dtype=np.uint8)
    config = resolve({**SETTINGS, **settings}, num_images=len(images))
    model = build_model(config, CPU)
    if not batch_norm:
        without_batch_norm(model.student)
        if not model.siamese:
            model.teacher = copy.deepcopy(model.student).requires_grad_(False)
    loader = make_loader(ArraySource(images), config)
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, steps), config, CPU)
    model.train()
    results = [stepper(batch, with_health=True) for batch in loader.batches(0, steps)]
    return model, results


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "settings",
    [{}, {"local_views": 2, "local_size": 16}, {"teacher_momentum": 0}, {"koleo_weight": 0.5, "koleo_distance": 0.3}],
)
@pytest.mark.parametrize("micro_batch", [4, 10, 12])  # 10 leaves a last one of 4
def test_exact_accumulation_equals_the_undivided_batch_without_batch_norm(micro_batch, settings):
    whole, whole_results = train(3, **settings)
    parts, part_results = train(3, micro_batch=micro_batch, **settings)
    for ours, theirs in zip(part_results, whole_results, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.kl_to_uniform == pytest.approx(theirs.kl_to_uniform, rel=1e-4)
        assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-4)
    assert float((weights(parts) - weights(whole)).norm() / weights(whole).norm()) < 1e-5


def test_fast_accumulation_differs_because_the_mean_assignment_is_each_micro_batchs_own():
    _, whole = train(1)
    _, exact = train(1, micro_batch=4)
    _, fast = train(1, micro_batch=4, accumulate="fast")
    assert exact[0].kl_to_uniform == pytest.approx(whole[0].kl_to_uniform, rel=1e-4)
    assert fast[0].kl_to_uniform > 1.001 * whole[0].kl_to_uniform  # a mean over fewer images is less uniform
    assert fast[0].consistency == pytest.approx(whole[0].consistency, rel=1e-5)


def test_a_short_last_micro_batch_counts_for_the_images_it_holds():
    """Without uniformity the loss is a mean over images, so any division of the batch gives the same step."""
    whole, whole_results = train(2, entropy_weight=0.0)
    parts, part_results = train(2, entropy_weight=0.0, micro_batch=10, accumulate="fast")
    assert [r.loss for r in part_results] == pytest.approx([r.loss for r in whole_results], rel=1e-5)
    assert float((weights(parts) - weights(whole)).norm() / weights(whole).norm()) < 1e-5


def test_running_statistics_count_every_micro_batch_once():
    exact, _ = train(1, batch_norm=True, micro_batch=12)
    fast, _ = train(1, batch_norm=True, micro_batch=12, accumulate="fast")
    for branch in ("student", "teacher"):
        ours, theirs = getattr(exact, branch), dict(getattr(fast, branch).named_buffers())
        for name, buffer in ours.named_buffers():
            if "running" in name:
                torch.testing.assert_close(buffer, theirs[name], rtol=1e-6, atol=1e-7, msg=f"{branch} {name}")


def test_health_is_measured_on_the_whole_batch():
    _, whole = train(1)
    _, exact = train(1, micro_batch=4)
    assert exact[0].health.prototypes_used == whole[0].health.prototypes_used
    assert exact[0].health.full_rank == whole[0].health.full_rank == 16


def test_dropout_is_the_same_in_both_passes():
    """A fed-back gradient is right only if the second pass repeats the first."""
    seen = {}

    def record(module, _inputs, output):
        seen.setdefault(torch.is_grad_enabled(), []).append(output.detach().clone())

    images = np.random.default_rng(0).integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    config = resolve({**SETTINGS, "micro_batch": 12}, num_images=24)
    model = build_model(config, CPU)
    model.student.encoder.global_pool.register_forward_hook(record)
    model.student.encoder.layer1.register_forward_hook(lambda _m, _i, out: torch.nn.functional.dropout(out, 0.5))
    stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 1), config, CPU)
    model.train()
    stepper(next(iter(make_loader(ArraySource(images), config).batches(0, 1))))
    assert len(seen[True]) == len(seen[False]) == 4
    for first, second in zip(seen[False], seen[True], strict=True):
        assert torch.equal(first, second)
