"""`reading: authors` is the step of the authors' code, and each of its settings does what it says."""

import copy

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.images.loading.loader import make_loader, normalise
from carp.images.sources.array import ArraySource
from carp.training import step
from carp.training.loop import build_model
from carp.training.micro_batch import divide
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper
from tests.reference import authors_step

CPU = torch.device("cpu")
STEPS = 10
SETTINGS = {
    "epochs": 5,
    "batch_size": 16,
    "global_size": 32,
    "blur": [0, 0, 0],
    "encoder": "resnet18",
    "encoder_options": {"layers": [1, 1, 1, 1], "channels": [4, 4, 8, 8], "stem_type": "deep", "stem_width": 4},
    "stem_stride": 2,
    "projector_hidden": 32,
    "embedding": 16,
    "embedding_scale": 10.0,
    "num_prototypes": 64,
    "block_size": 8,
    "lr": [2.0, 0.02],
    "weight_decay": [1e-4, 1e-3],
    "channels_last": False,
    "device": "cpu",
}


def images():
    coarse = np.random.default_rng(0).integers(0, 256, (32, 4, 4, 3), dtype=np.uint8)
    fine = np.random.default_rng(1).integers(0, 64, (32, 32, 32, 3), dtype=np.uint8)
    return (coarse.repeat(8, axis=1).repeat(8, axis=2) // 2 + fine).astype(np.uint8)


class Course:
    """A model, its optimiser and its batches; `step` takes the next step."""

    def __init__(self, **settings):
        self.config = resolve({**SETTINGS, **settings}, num_images=32)
        self.model = build_model(self.config, CPU).train()
        loader = make_loader(ArraySource(images()), self.config)
        self.schedules = Schedules(self.config, loader.steps_per_epoch)
        self.optimiser = build_optimiser(self.model, self.config)
        self.stepper = Stepper(self.model, self.optimiser, self.schedules, self.config, CPU)
        self.batches = list(loader.batches(0, STEPS))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(branch):
    return authors_step.Network(branch.encoder, branch.projector.layers, branch.assigner.directions_KD)


def same(ours, theirs, name):
    scale = max(1.0, float(theirs.abs().max()))
    assert float((ours - theirs).abs().max()) <= 2e-5 * scale, name


MULTI_CROP = {"local_views": 2, "local_size": 16}


@pytest.mark.parametrize(
    ("momentum", "settings"),
    [
        ([0.99, 1.0], {}),
        ([0.99, 1.0], MULTI_CROP),
        ([0.99, 1.0], {"micro_batch": 8, **MULTI_CROP}),
        ([0.0, 0.0], {}),
        ([0.0, 0.0], MULTI_CROP),
    ],
    ids=["two views", "multi-crop", "micro-batches", "no momentum", "no momentum, multi-crop"],
)
def test_ten_steps_equal_the_authors(momentum, settings):
    ours = Course(reading="authors", teacher_momentum=momentum, **settings)
    config = ours.config
    student, teacher = copy.deepcopy(ours.model.student), copy.deepcopy(ours.model.student)
    f, k = network(student), network(teacher)
    optimiser = authors_step.Lars(f.parameters())
    start = torch.cat([p.detach().flatten().clone() for p in f.parameters()])
    num_steps = ours.schedules.num_steps
    for batch in ours.batches:
        parts = divide(batch, config.micro_batch)
        values = {
            "lr": authors_step.schedule(2.0 * 16 / 256, 0.02, batch.step, num_steps),
            "weight_decay": authors_step.schedule(1e-4, 1e-3, batch.step, num_steps),
            "momentum": authors_step.schedule(*momentum, batch.step, num_steps),
        }
        micro = [[normalise(v, CPU, channels_last=False) for v in part.views] for part in parts]
        partitions = [ours.stepper.partition(batch.step, number) for number in range(len(parts))]
        expected = authors_step.take_step(f, k, optimiser, micro, partitions, **values)
        result = ours.stepper(batch)
        assert result.loss == pytest.approx(expected, rel=2e-5)
        for own, other in ((ours.model.student, student), (ours.model.teacher, teacher)):
            theirs = other.state_dict()
            for name, tensor in own.state_dict().items():
                same(tensor, theirs[name], f"step {batch.step}: {name}")
    for parameter, moment in zip(network(ours.model.student).parameters(), optimiser.moments, strict=True):
        same(ours.optimiser.state[parameter]["momentum_buffer"], moment, "momentum of the optimiser")
    end = torch.cat([p.detach().flatten() for p in f.parameters()])
    assert float((end - start).norm() / start.norm()) > 1e-3, "the comparison needs weights that move"


# One setting at a time, from the printed reading


def parameters(branch):
    return {name: p.detach().clone() for name, p in branch.named_parameters()}


def first_step(**settings):
    """The model before and after one step, and the result."""
    course = Course(**settings)
    before = copy.deepcopy(course.model)
    result = course.stepper(course.batches[0])
    return before, course.model, result


def test_pairs_mean_halves_the_loss_and_its_gradient_at_half_the_entropy_weight():
    _, summed, whole = first_step(pairs="sum", entropy_weight=2.0, optimiser="sgd", weight_decay=0)
    start, averaged, half = first_step(pairs="mean", entropy_weight=1.0, optimiser="sgd", weight_decay=0)
    assert half.loss == pytest.approx(whole.loss / 2, rel=1e-5)
    assert half.consistency == pytest.approx(whole.consistency / 2, rel=1e-5)
    assert half.kl_to_uniform == pytest.approx(whole.kl_to_uniform, rel=1e-5)
    assert half.gradient_norm == pytest.approx(whole.gradient_norm / 2, rel=1e-4)
    begun, full = parameters(start.student), parameters(summed.student)
    for name, value in parameters(averaged.student).items():
        torch.testing.assert_close(value - begun[name], (full[name] - begun[name]) / 2, rtol=1e-3, atol=1e-6, msg=name)


def test_uncertainty_does_not_depend_on_how_pairs_are_combined():
    found = []
    for pairs in ("sum", "mean"):
        course = Course(pairs=pairs)
        found.append(course.stepper(course.batches[0], with_health=True).health)
    assert found[0].uncertainty == pytest.approx(found[1].uncertainty, rel=1e-6)
    assert 0.5 < found[0].uncertainty < 2


def test_the_teacher_moves_from_the_weights_before_or_after_the_step():
    for when in ("before", "after"):
        before, after, _ = first_step(teacher_update=when, teacher_momentum=0.75)
        source = parameters((before if when == "before" else after).student)
        start, end = parameters(before.teacher), parameters(after.teacher)
        for name, value in end.items():
            torch.testing.assert_close(value, 0.75 * start[name] + 0.25 * source[name], rtol=1e-5, atol=1e-6, msg=name)
    assert any(not torch.equal(p, parameters(before.student)[n]) for n, p in parameters(after.student).items())


def test_without_momentum_a_copy_is_one_step_old_and_has_statistics_of_its_own():
    course = Course(teacher_momentum=0, zero_momentum="copy", teacher_update="before")
    assert course.model.teacher is not course.model.student
    for batch in course.batches[:3]:
        before = parameters(course.model.student)
        course.stepper(batch)
        assert all(torch.equal(p, before[name]) for name, p in parameters(course.model.teacher).items())
        assert any(not torch.equal(p, before[name]) for name, p in parameters(course.model.student).items())
    assert not torch.equal(course.model.teacher.encoder.bn1.running_mean, course.model.student.encoder.bn1.running_mean)
    siamese = Course(teacher_momentum=0)
    assert siamese.model.teacher is siamese.model.student


@pytest.mark.parametrize("shards", [{}, {"prototypes": "sharded", "prototype_shards": 2}], ids=["", "sharded"])
@pytest.mark.parametrize(("accumulate", "drawn"), [("exact", 1), ("fast", 1), ("independent", 2)])
def test_independent_micro_batches_have_partitions_of_their_own(monkeypatch, accumulate, drawn, shards):
    used, name = [], "sharded_loss" if shards else "shared_loss"
    real = getattr(step, name)

    def loss(embedded, partition_PN, **settings):
        used.append(partition_PN)
        return real(embedded, partition_PN, **settings)

    monkeypatch.setattr(step, name, loss)
    course = Course(accumulate=accumulate, micro_batch=8, **shards)
    course.stepper(course.batches[0])
    assert len(used) == (1 if accumulate == "exact" else 2)
    assert len({tuple(partition.flatten().tolist()) for partition in used}) == drawn
    assert torch.equal(used[0], course.stepper.partition(0))
    assert all(torch.equal(partition.flatten().sort().values, torch.arange(64)) for partition in used)


def test_schedules_end_at_the_last_step_or_one_step_later():
    for endpoint in (True, False):
        config = resolve({**SETTINGS, "schedule_endpoint": endpoint, "entropy_weight": [3.0, 1.0]}, num_images=32)
        schedules = Schedules(config, 2)
        last = schedules.num_steps - 1
        ends = (schedules.lr(last), schedules.weight_decay(last), schedules.teacher_momentum(last))
        assert (ends == (0.02, 1e-3, 1.0)) is endpoint
        assert schedules.entropy_weight(0) == 3.0
        assert schedules.entropy_weight(schedules.num_steps // 2) == pytest.approx(2.0, abs=0.2 if endpoint else 1e-12)
