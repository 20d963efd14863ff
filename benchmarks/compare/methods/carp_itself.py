"""CARP: the model, loss and partitions that `carp train` uses."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.compare.method import Method, Moment, lars_rate
from benchmarks.compare.ranges import Choice, LogUniform
from carp.config import Config
from carp.model.carp import Carp, Embedded
from carp.model.partition import random_partition
from carp.model.shared_loss import shared_loss
from carp.random import Purpose, seed_of


class CarpItself(Method):
    """Consistent assignment of views over random partitions.

    The published setting is the paper's, with a quarter of its widths and prototypes. Embeddings of a fixed length, as
    in the recipe `cifar10-cpu`, come with the recipe's learning rate for prototypes. The recipe itself is not one of
    the trials, because it was tuned with more trials than the other methods had.
    """

    name, title = "carp", "CARP"
    source = "paper: 100 to 200 epochs, K = 65,536"
    fixed = {  # noqa: RUF012 - a ClassVar of the base
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "projector_hidden": 512,
        "embedding": 128,
        "num_prototypes": 16_384,
        "block_size": 512,
        "global_scale": [0.2, 1.0],
        "solarise": [0.0, 0.2, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.6),
        "teacher_momentum": Choice(0.9, 0.97, 0.99, published=0.99),
        "entropy_weight": LogUniform(1.0, 10.0, published=1.0),
        "embedding_length": Choice(None, 22.6, published=None),
    }
    lr_end = 0.01
    multi_crop = True
    constants = {"prototype_lr": 0.1}  # noqa: RUF012 - of embeddings of fixed length, relative to that of other matrices

    @classmethod
    def configure(cls, common: Mapping[str, Any], trial: Mapping[str, Any], *, num_images: int) -> Config:
        """Return the configuration of a trial."""
        slow = {} if {**cls.fixed, **trial}["embedding_length"] is None else cls.constants
        return super().configure({**common, **slow}, trial, num_images=num_images)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = Carp(config)
        self.encoder = self.model.student.encoder

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:
        """Return the loss over the partition of the step."""
        return self.loss_of(self.embedded(views), moment)

    def embedded(self, views: Sequence[Tensor]) -> Embedded:
        """Return the embeddings of the views and the prototypes."""
        return cast(Embedded, self.model(views))

    def loss_of(self, embedded: Embedded, moment: Moment) -> Tensor:
        """Return the loss of embeddings over the partition of the step."""
        config = self.config
        generator = torch.Generator().manual_seed(seed_of(config.seed, Purpose.PARTITION, moment.step))
        partition_PN = random_partition(config.num_prototypes, config.block_size, generator=generator)
        return shared_loss(
            embedded,
            partition_PN,
            images=len(embedded.z[0]),
            entropy_weight=moment.entropy_weight,
            pairs=config.pairs,
            uniformity=config.uniformity,
            koleo_weight=config.koleo_weight,
            koleo_distance=config.koleo_distance,
        ).total

    def after_step(self, moment: Moment) -> None:
        """Move the teacher towards the student."""
        self.model.update_teacher(moment.teacher_momentum)

    def encoders(self) -> dict[str, torch.nn.Module]:
        """Return the encoders by branch."""
        return {"student": self.model.student.encoder, "teacher": self.model.teacher.encoder}
