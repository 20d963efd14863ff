"""`reading: authors` is the step of the authors' code, and each of its settings does what it says."""

import copy

import numpy as np
import pytest
import torch

from carp.config import resolve
from carp.images.loading.loader import make_loader, normalise
from carp.images.sources.array import ArraySource
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
    "encoder_options": {"channels": [8, 8, 16, 16], "stem_type": "deep", "stem_width": 4},
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


MULTI_CROP = {"local_views": 3, "local_size": 16}


@pytest.mark.parametrize("momentum", [[0.99, 1.0], 0], ids=["teacher", "no momentum"])
@pytest.mark.parametrize("views", [{}, MULTI_CROP], ids=["two views", "multi-crop"])
@pytest.mark.parametrize("micro_batch", [None, 8], ids=["whole", "micro-batches"])
def test_ten_steps_equal_the_authors(views, momentum, micro_batch):
    ours = Course(reading="authors", teacher_momentum=momentum, micro_batch=micro_batch, **views)
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
            "momentum": authors_step.schedule(*(momentum or [0, 0]), batch.step, num_steps),
        }
        micro = [[normalise(v, CPU, channels_last=False) for v in part.views] for part in parts]
        partitions = [ours.stepper.partition(batch.step, i) for i in range(len(parts))]
        expected = authors_step.take_step(f, k, optimiser, micro, partitions, **values)
        result = ours.stepper(batch)
        assert result.loss == pytest.approx(expected, rel=2e-5)
        for own, other in ((ours.model.student, student), (ours.model.teacher, teacher)):
            theirs = dict(other.state_dict())
            for name, tensor in own.state_dict().items():
                same(tensor, theirs[name], f"step {batch.step}: {name}")
    for p, moment in zip(f.parameters(), optimiser.moments, strict=True):
        mine = dict(zip((id(x) for x in f.parameters()), network(ours.model.student).parameters(), strict=True))[id(p)]
        same(ours.optimiser.state[mine]["momentum_buffer"], moment, "moments")
    end = torch.cat([p.detach().flatten() for p in f.parameters()])
    assert float((end - start).norm() / start.norm()) > 1e-3, "the comparison needs weights that move"
