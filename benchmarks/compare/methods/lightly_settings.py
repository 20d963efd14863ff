"""SimCLR, SwAV and DINO with the settings of lightly's CIFAR-10 benchmark, instead of those of their papers.

That benchmark trains a whole ResNet-18 for 200 epochs, and the three methods end within a few points of each other.
With the same settings, a run here differs in the length of training and in the width of the encoder alone. One trial
(`--trials 1`) is the published setting: nothing is searched.
"""

from typing import Any

from lightly.models.modules import DINOProjectionHead
from lightly.models.modules.heads import ProjectionHead
from torch import nn

from benchmarks.compare.method import Method, encoder_of
from benchmarks.compare.methods.contrast import SimCLR
from benchmarks.compare.methods.distillation import DINO
from benchmarks.compare.methods.swapped_codes import SwAV
from benchmarks.compare.ranges import Choice, Range

_SOURCE = "lightly's benchmark for CIFAR-10, batches of 128"
_SGD = {"optimiser": "sgd", "weight_decay": [5e-4, 5e-4]}
_SGD_RATE, _ADAM_RATE = 0.12, 0.002  # per 256 images


def _only(**settings: Any) -> dict[str, Range]:
    """Return ranges of one value each."""
    return {name: Choice(value, published=value) for name, value in settings.items()}


class LightlySimCLR(SimCLR):
    """SGD without warm-up."""

    name, title, source = "lightly-simclr", "SimCLR, lightly's settings", _SOURCE
    fixed = {**SimCLR.fixed, **_SGD}  # noqa: RUF012 - a ClassVar of the base
    search = _only(lr=_SGD_RATE, projector_hidden=512, temperature=0.5)
    warmup = 0.0


class LightlySwAV(SwAV):
    """Adam, fewer prototypes that move from the first step, no queue."""

    name, title, source = "lightly-swav", "SwAV, lightly's settings", _SOURCE
    fixed = {**SwAV.fixed, "optimiser": "adamw", "global_scale": [0.14, 1.0]}  # noqa: RUF012
    search = _only(lr=_ADAM_RATE, temperature=0.1, sharpness=2.0, num_codes=512, queue_batches=0)
    lr_end = 0.0
    constants = {**SwAV.constants, "frozen": 0.0}  # noqa: RUF012


class LightlyDINO(DINO):
    """SGD, larger crops, a head of two layers, a teacher of constant momentum."""

    name, title, source = "lightly-dino", "DINO, lightly's settings", _SOURCE
    fixed = {  # noqa: RUF012
        **DINO.fixed,
        **_SGD,
        "projector_hidden": 2048,
        "embedding": 256,
        "global_scale": [0.4, 1.0],
    }
    search = _only(lr=_SGD_RATE, teacher_momentum=0.99, teacher_temperature=0.04, num_outputs=2048)
    warmup = 0.0
    momentum_end = None
    constants = {**DINO.constants, "frozen": 0.0}  # noqa: RUF012

    def _branch(self, num_outputs: int) -> nn.Sequential:
        encoder, features = encoder_of(self.config)
        hidden, embedding = self.config.projector_hidden, self.config.embedding
        head = DINOProjectionHead(features, hidden, embedding, num_outputs)
        first = (features, hidden, nn.BatchNorm1d(hidden), nn.GELU())
        head.layers = ProjectionHead([first, (hidden, embedding, None, None)]).layers
        return nn.Sequential(encoder, head)


LIGHTLY: tuple[type[Method], ...] = (LightlySimCLR, LightlySwAV, LightlyDINO)
