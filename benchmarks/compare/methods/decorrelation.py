"""Barlow Twins and VICReg: equal embeddings of two views, whose dimensions are uncorrelated."""

from collections.abc import Sequence
from typing import cast

from lightly.loss import BarlowTwinsLoss, VICRegLoss
from lightly.models.modules import BarlowTwinsProjectionHead
from torch import Tensor, nn

from benchmarks.compare.method import Method, Moment, encoder_of, lars_rate, width
from benchmarks.compare.ranges import LogUniform
from carp.config import Config


class _Decorrelation(Method):
    """Three layers of one width, and a loss of the embeddings of both views; VICReg took over the projector."""

    def __init__(self, config: Config, criterion: nn.Module) -> None:
        super().__init__(config)
        self.encoder, features = encoder_of(config)
        self.head = BarlowTwinsProjectionHead(features, config.projector_hidden, config.projector_hidden)
        self.criterion = criterion

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:  # noqa: ARG002
        """Return the loss of two views."""
        first, second = (self.head(self.encoder(view)).float() for view in views)
        return cast(Tensor, self.criterion(first, second))


class BarlowTwins(_Decorrelation):
    """Bring the correlation of both views' dimensions close to the identity (Zbontar et al., 2021)."""

    name, title = "barlow", "Barlow Twins"
    source = "authors' defaults"
    fixed = {  # noqa: RUF012 - a ClassVar of the base
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "global_scale": [0.08, 1.0],
        "solarise": [0.0, 0.2, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.2),
        "projector_hidden": width(2048),
        "redundancy": LogUniform(0.001, 0.05, published=0.0051),
    }
    lr_end = 0.001
    warmup = 0.01
    vector_lr = 0.1  # 0.0048 / 0.2 for 8,192 outputs; the loss grows with their number, and there are a quarter of them

    def __init__(self, config: Config, redundancy: float) -> None:
        super().__init__(config, BarlowTwinsLoss(redundancy))


class VICReg(_Decorrelation):
    """Invariance, variance and covariance (Bardes et al., 2022)."""

    name, title = "vicreg", "VICReg"
    source = "authors' command for 100 epochs"
    fixed = {  # noqa: RUF012
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "global_scale": [0.08, 1.0],
        "solarise": [0.1, 0.1, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.3),
        "projector_hidden": width(2048),
        "variance": LogUniform(5.0, 50.0, published=25.0),
    }
    lr_end = 0.001
    warmup = 0.1

    def __init__(self, config: Config, variance: float) -> None:
        super().__init__(config, VICRegLoss(lambda_param=variance, mu_param=variance, nu_param=1.0))
