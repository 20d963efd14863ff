"""BYOL and DINO: a student that predicts the output of a momentum teacher for another view."""

from collections.abc import Sequence
from typing import cast

import torch
from lightly.loss import DINOLoss, NegativeCosineSimilarity
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead, DINOProjectionHead
from torch import Tensor, nn

from benchmarks.compare.method import Method, Moment, encoder_of, lars_rate, momentum, teacher_of, width
from benchmarks.compare.ranges import Choice, LogUniform
from carp.config import Config


class BYOL(Method):
    """Predict the teacher's projection of the other view (Grill et al., 2020)."""

    name, title = "byol", "BYOL"
    source = "paper, 100 epochs"
    fixed = {  # noqa: RUF012 - a ClassVar of the base
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "embedding": 128,
        "global_scale": [0.08, 1.0],
        "solarise": [0.0, 0.2, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.45),
        "teacher_momentum": momentum(0.99),
        "projector_hidden": width(1024),
    }
    warmup = 0.1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.student, teacher = self._branch(), self._branch()
        self.encoder, self.teacher = self.student[0], teacher_of(teacher, self.student)
        self.predictor = BYOLPredictionHead(config.embedding, config.projector_hidden, config.embedding)
        self.criterion = NegativeCosineSimilarity()

    def _branch(self) -> nn.Sequential:
        encoder, features = encoder_of(self.config)
        return nn.Sequential(encoder, BYOLProjectionHead(features, self.config.projector_hidden, self.config.embedding))

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:  # noqa: ARG002
        """Return the squared distances of predictions and targets of unit length, less a constant."""
        assert self.teacher is not None
        with torch.no_grad():
            targets = [self.teacher(view).float() for view in views]
        predictions = [self.predictor(self.student(view)).float() for view in views]
        pairs = zip(predictions, reversed(targets), strict=True)
        return cast(Tensor, 2 * sum(self.criterion(prediction, target) for prediction, target in pairs))

    def followed(self) -> nn.Module:
        """Return encoder and projector; the teacher has no predictor."""
        return self.student


class DINO(Method):
    """Match the sharpened and centred outputs of a teacher across views (Caron et al., 2021).

    With the authors' SGD for ResNets, no trial left the level of the untrained encoder; solo-learn trains DINO on
    CIFAR-10 with LARS.
    """

    name, title = "dino", "DINO"
    source = "authors' command for ResNet-50; optimiser and outputs: solo-learn's for CIFAR-10"
    fixed = {  # noqa: RUF012
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "projector_hidden": 512,
        "embedding": 128,
        "global_scale": [0.14, 1.0],
        "solarise": [0.0, 0.2, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.3),
        "teacher_momentum": momentum(0.996),
        "teacher_temperature": LogUniform(0.02, 0.08, published=0.04),
        "num_outputs": Choice(2048, 4096, 16_384, published=4096),
    }
    warmup = 0.1
    multi_crop = True
    constants = {"frozen": 0.01}  # noqa: RUF012 - share of the steps in which the last layer does not move

    def __init__(self, config: Config, teacher_temperature: float, num_outputs: int) -> None:
        super().__init__(config)
        self.student, teacher = self._branch(num_outputs), self._branch(num_outputs)  # weight norm has no deep copy
        self.encoder, self.teacher = self.student[0], teacher_of(teacher, self.student)
        self.criterion = DINOLoss(num_outputs, teacher_temp=teacher_temperature)

    def _branch(self, num_outputs: int) -> nn.Sequential:
        encoder, features = encoder_of(self.config)
        widths = features, self.config.projector_hidden, self.config.embedding, num_outputs
        return nn.Sequential(encoder, DINOProjectionHead(*widths, batch_norm=True))

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:  # noqa: ARG002
        """Return the cross entropy with the teacher's outputs for the global views."""
        assert self.teacher is not None
        with torch.no_grad():
            targets = [self.teacher(view).float() for view in views[:2]]
        predictions = [self.student(view).float() for view in views]
        return cast(Tensor, self.criterion(targets, predictions))

    def before_step(self, moment: Moment) -> None:
        """Keep the last layer as it is during the first steps."""
        if moment.progress < self.constants["frozen"]:
            for parameter in cast(DINOProjectionHead, self.student[1]).last_layer.parameters():
                parameter.grad = None

    def followed(self) -> nn.Module:
        """Return encoder and head."""
        return self.student
