"""The best epoch of every classifier on the test images, which published linear evaluations report.

The value is optimistic, because the test images select the epoch; by default, CARP uses other images.

Shapes: S classifiers, C classes, F features.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from carp.evaluation.linear.grid import Batch, LinearGrid


class BestEpochs:
    """The weights that each classifier of a grid had after its best epoch; the first one if several are equal."""

    def __init__(self, grid: LinearGrid, test: Callable[[], Iterable[Batch]]) -> None:
        self._grid, self._test = grid, test
        self._weight_SCF, self._bias_SC = grid.weight_SCF.clone(), grid.bias_SC.clone()
        self._top1_S = torch.full((len(grid.classifiers),), -1.0, dtype=torch.float64)
        self._epoch_S = torch.zeros(len(grid.classifiers), dtype=torch.int64)

    def after_epoch(self, epoch: int) -> None:
        """Test all classifiers, and keep the weights of those that are better than before."""
        top1_S = torch.tensor(self._grid.accuracy(self._test()).top1, dtype=torch.float64)
        better = torch.nonzero(top1_S > self._top1_S)[:, 0]
        self._top1_S[better], self._epoch_S[better] = top1_S[better], epoch + 1
        better = better.to(self._weight_SCF.device)
        self._weight_SCF[better], self._bias_SC[better] = self._grid.weight_SCF[better], self._grid.bias_SC[better]

    def restore(self) -> list[int]:
        """Give the classifiers their best weights; return the number of epochs after which they had them."""
        self._grid.weight_SCF.copy_(self._weight_SCF)
        self._grid.bias_SC.copy_(self._bias_SC)
        epochs: list[int] = self._epoch_S.tolist()
        return epochs

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes during training, one row per classifier."""
        return {
            "weight": self._weight_SCF,
            "bias": self._bias_SC,
            "top1": self._top1_S,
            "epoch": self._epoch_S,
        }
