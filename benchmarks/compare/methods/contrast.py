"""SimCLR and MoCo v2: tell the other view of an image from other images."""

from collections.abc import Sequence
from typing import cast

import torch
from lightly.loss import NTXentLoss
from lightly.models.modules import MoCoProjectionHead, SimCLRProjectionHead
from torch import Tensor, nn

from benchmarks.compare.method import Method, Moment, encoder_of, lars_rate, momentum, sgd_rate, teacher_of, width
from benchmarks.compare.ranges import Choice, LogUniform
from carp.config import Config
from carp.random import Purpose, seed_of

_COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "solarise": [0.0, 0.0, 0.0]}


class SimCLR(Method):
    """Contrast every view with all other images of the batch (Chen et al., 2020)."""

    name, title = "simclr", "SimCLR"
    source = "paper, appendix on CIFAR-10 (lr 0.5, 1 or 1.5)"
    fixed = {  # noqa: RUF012 - a ClassVar of the base
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "embedding": 128,
        "global_scale": [0.08, 1.0],
        **_COLOURS,
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(1.0),
        "projector_hidden": width(512),
        "temperature": LogUniform(0.05, 0.5, published=0.5),
    }
    warmup = 0.1

    def __init__(self, config: Config, temperature: float) -> None:
        super().__init__(config)
        self.encoder, features = encoder_of(config)
        self.head = SimCLRProjectionHead(features, config.projector_hidden, config.embedding)
        self.criterion = NTXentLoss(temperature)

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:  # noqa: ARG002
        """Return the cross entropy of finding the other view."""
        first, second = (self.head(self.encoder(view)).float() for view in views)
        return cast(Tensor, self.criterion(first, second))


class MoCo(Method):
    """Contrast every view with a queue of earlier images, as a momentum encoder sees them (Chen et al., 2020).

    The loss is symmetric, so that both views pass through the student, as in all other methods. Each direction has
    its own queue: in a common one, the key of the same view would be among the negatives. Keys are computed in random
    parts of the batch, so that the statistics of batch norm do not give away which key belongs to which query.
    """

    name, title = "moco", "MoCo v2"
    source = "authors' CIFAR-10 notebook, symmetric loss"
    fixed = {  # noqa: RUF012
        "optimiser": "sgd",
        "weight_decay": [5e-4, 5e-4],
        "projector_hidden": 512,
        "embedding": 128,
        "global_scale": [0.2, 1.0],
        **_COLOURS,
    }
    search = {  # noqa: RUF012
        "lr": sgd_rate(0.03),
        "teacher_momentum": momentum(0.99),
        "temperature": LogUniform(0.05, 0.5, published=0.1),
        "queue": Choice(1024, 4096, 16_384, published=4096),
    }
    momentum_end = None
    constants = {"batch_norm_parts": 8}  # noqa: RUF012 - as in the authors' notebook

    def __init__(self, config: Config, temperature: float, queue: int) -> None:
        super().__init__(config)
        self.student, teacher = self._branch(), self._branch()
        self.encoder, self.teacher = self.student[0], teacher_of(teacher, self.student)
        size = (queue, config.embedding)
        self.criteria = nn.ModuleList(NTXentLoss(temperature, memory_bank_size=size) for _ in range(2))

    def _branch(self) -> nn.Sequential:
        encoder, features = encoder_of(self.config)
        return nn.Sequential(encoder, MoCoProjectionHead(features, self.config.projector_hidden, self.config.embedding))

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:
        """Return the mean cross entropy of finding the key of the other view, in both directions."""
        generator = torch.Generator().manual_seed(seed_of(self.config.seed, Purpose.STEP, moment.step))
        keys = [self._keys(view, torch.randperm(len(view), generator=generator)) for view in views]
        queries = [self.student(view).float() for view in views]
        pairs = zip(self.criteria, queries, reversed(keys), strict=True)
        return cast(Tensor, sum(criterion(query, key) for criterion, query, key in pairs) / len(queries))

    @torch.no_grad()
    def _keys(self, view: Tensor, order: Tensor) -> Tensor:
        """Return the keys of a view, which passes through the teacher in parts, in this order."""
        assert self.teacher is not None
        keys = torch.cat(
            [self.teacher(part).float() for part in view[order].chunk(int(self.constants["batch_norm_parts"]))]
        )
        return torch.empty_like(keys).index_copy_(0, order, keys)

    def followed(self) -> nn.Module:
        """Return encoder and projector."""
        return self.student
