"""What a method is to the referee: settings of its paper, a range to search, and a loss of views.

Settings that CARP has too keep its names (`lr`, `projector_hidden`, `teacher_momentum`, …) and become a `Config`, so
that encoder, views, optimiser and schedules are CARP's own. All others are the method's own and go to its constructor.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.compare.ranges import Choice, LogUniform, Range
from carp.config import Config, resolve
from carp.model.encoder import build_encoder, num_features
from carp.training.optimiser import build_optimiser

LARS_RATES = (0.2, 10.0)  # the same for all methods: LARS moves weights by a share of their length, whatever the loss
SGD_FACTORS = (0.5, 10.0)  # of the published learning rate: a hundred times fewer steps may need a larger one
MOMENTA = (0.9, 0.97, 0.99, 0.996)  # of teachers
WIDTHS = (512, 1024, 2048)  # of projectors' hidden layers


@dataclass(frozen=True)
class Moment:
    """Where training is, and the scheduled values of the step."""

    step: int
    num_steps: int
    teacher_momentum: float
    entropy_weight: float

    @property
    def progress(self) -> float:
        """The share of the steps that are done, from 0 to less than 1."""
        return self.step / self.num_steps


class Method(nn.Module, ABC):
    """A method of self-supervised learning, ready to train.

    Class attributes:
        name: Its name on the command line and in folders.
        title: Its name in tables.
        source: Where its published setting comes from, in a few words.
        fixed: Settings of its paper that are not searched, by CARP's names.
        search: Ranges of the settings that are searched; each contains the published value.
        lr_end: The last learning rate, relative to the first.
        warmup: The share of the steps in which the learning rate rises.
        momentum_end: The last momentum of the teacher; None keeps the first.
        vector_lr: The learning rate of biases and batch norm, relative to that of matrices.
        multi_crop: Whether its paper trains on additional small views.
        length: The number of epochs relative to other methods; less than 1 if its steps take longer.
        constants: All other numbers that define the method.

    Attributes:
        encoder: The student's encoder.
        teacher: The teacher's networks, of which the first is its encoder; None if there is no teacher.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    fixed: ClassVar[Mapping[str, Any]] = {}
    search: ClassVar[Mapping[str, Range]]
    lr_end: ClassVar[float] = 0.0
    warmup: ClassVar[float] = 0.0
    momentum_end: ClassVar[float | None] = 1.0
    vector_lr: ClassVar[float] = 1.0
    multi_crop: ClassVar[bool] = False
    length: ClassVar[float] = 1.0
    constants: ClassVar[Mapping[str, float]] = {}

    encoder: nn.Module
    teacher: nn.Sequential | None

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.teacher = None

    @classmethod
    def configure(cls, common: Mapping[str, Any], trial: Mapping[str, Any], *, num_images: int) -> Config:
        """Return the configuration of a trial, without the method's own settings."""
        values = {**common, **cls.fixed, **{key: trial[key] for key in trial if key in Config.model_fields}}
        values["epochs"] = max(1, round(cls.length * values["epochs"]))
        values["lr"] = [trial["lr"], trial["lr"] * cls.lr_end]
        values["warmup_epochs"] = cls.warmup * values["epochs"]
        if "teacher_momentum" in trial:
            first = trial["teacher_momentum"]
            values["teacher_momentum"] = [first, first if cls.momentum_end is None else cls.momentum_end]
        if not cls.multi_crop:
            values["local_views"] = 0
        return resolve(values, num_images=num_images)

    @classmethod
    def build(cls, config: Config, trial: Mapping[str, Any]) -> "Method":
        """Return the method with the initial weights of the current random state; the encoder's are drawn first."""
        return cls(config, **{key: trial[key] for key in cls.search if key not in Config.model_fields})

    @abstractmethod
    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:
        """Return the loss of a batch; the two global views come first."""

    def before_step(self, moment: Moment) -> None:
        """Change gradients before the optimiser uses them."""

    @torch.no_grad()
    def after_step(self, moment: Moment) -> None:
        """Move the teacher towards the student."""
        if self.teacher is not None:
            own, student = tuple(self.teacher.parameters()), tuple(self.followed().parameters())
            torch._foreach_lerp_(own, student, 1.0 - moment.teacher_momentum)

    def followed(self) -> nn.Module:
        """Return the part of the student that the teacher follows."""
        raise NotImplementedError

    def encoders(self) -> dict[str, nn.Module]:
        """Return the encoders by branch."""
        return {"student": self.encoder} | ({} if self.teacher is None else {"teacher": self.teacher[0]})

    def optimiser(self) -> Optimizer:
        """Build the optimiser of the paper's family, with CARP's groups of parameters."""
        optimiser = build_optimiser(self, self.config)
        for group in optimiser.param_groups:
            if not group["decayed"]:
                group["lr_factor"] *= self.vector_lr
        return optimiser


def encoder_of(config: Config) -> tuple[nn.Module, int]:
    """Build the encoder that all methods share, and return it with its number of features."""
    encoder = build_encoder(config)
    return encoder, num_features(encoder)


def teacher_of(networks: nn.Sequential, student: nn.Sequential) -> nn.Sequential:
    """Give networks of the same shape the weights of the student, and take their gradients away."""
    networks.load_state_dict(student.state_dict())
    return networks.requires_grad_(False)


def lars_rate(published: float) -> LogUniform:
    """The range of learning rates with LARS, per 256 images."""
    return LogUniform(*LARS_RATES, published=published)


def sgd_rate(published: float) -> LogUniform:
    """The range of learning rates without LARS, per 256 images, around a published one."""
    low, high = SGD_FACTORS
    return LogUniform(low * published, high * published, published=published)


def momentum(published: float) -> Choice:
    """The range of momenta that all methods with a teacher share."""
    return Choice(*MOMENTA, published=published)


def width(published: int) -> Choice:
    """The range of widths that all projectors share."""
    return Choice(*WIDTHS, published=published)
