"""Barlow Twins and VICReg: equal embeddings of two views, whose dimensions are uncorrelated.

Both losses need the sum of the squared elements of a D × D matrix AᵀB of B × D embeddings. It equals ⟨AAᵀ, BBᵀ⟩, whose
factors are B × B, so the large matrix is never formed. The values and gradients are those of lightly's losses (tested),
with which a step of VICReg takes twice as long (D = 2,048, B = 128).

Shapes: B images, D embedding.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from lightly.models.modules import BarlowTwinsProjectionHead
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compare.method import Method, Moment, encoder_of, lars_rate, width
from benchmarks.compare.ranges import LogUniform
from carp.config import Config

_EPSILON = 1e-4  # of VICReg's standard deviation


class _Decorrelation(Method):
    """Three layers of one width, and a loss of the embeddings of both views; VICReg took over the projector."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.encoder, features = encoder_of(config)
        self.head = BarlowTwinsProjectionHead(features, config.projector_hidden, config.projector_hidden)

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:  # noqa: ARG002
        """Return the loss of two views."""
        embeddings = [self.head(self.encoder(view)).float() for view in views]
        with torch.autocast("cpu", enabled=False):
            return self.loss_of(*embeddings)

    @abstractmethod
    def loss_of(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        """Return the loss of the embeddings of two views."""


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
        super().__init__(config)
        self.redundancy = redundancy

    def loss_of(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        """Return the squared distance of the correlations from the identity, with a weight off the diagonal."""
        first_BD, second_BD = (F.batch_norm(z_BD, None, None, training=True) for z_BD in (first_BD, second_BD))
        diagonal_D = (first_BD * second_BD).mean(dim=0)
        others = _off_diagonal_squares(first_BD, second_BD, diagonal_D, len(first_BD))
        return (diagonal_D - 1.0).square().sum() + self.redundancy * others


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
        super().__init__(config)
        self.variance = variance  # the weight of invariance and variance; that of covariance is 1

    def loss_of(self, first_BD: Tensor, second_BD: Tensor) -> Tensor:
        """Return the weighted sum of invariance, variance and covariance."""
        loss = self.variance * F.mse_loss(first_BD, second_BD)
        for z_BD in (first_BD, second_BD):
            variance_D, centred_BD = z_BD.var(dim=0), z_BD - z_BD.mean(dim=0)
            loss = loss + 0.5 * self.variance * F.relu(1.0 - (variance_D + _EPSILON).sqrt()).mean()
            others = _off_diagonal_squares(centred_BD, centred_BD, variance_D, len(z_BD) - 1)
            loss = loss + others / z_BD.shape[1]
        return loss


def _off_diagonal_squares(first_BD: Tensor, second_BD: Tensor, diagonal_D: Tensor, count: int) -> Tensor:
    """Return the sum of the squared elements of firstᵀ · second / count that are not on its diagonal."""
    all_squares = ((first_BD @ first_BD.mT) * (second_BD @ second_BD.mT)).sum() / count**2
    return all_squares - diagonal_D.square().sum()
