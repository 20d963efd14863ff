"""Many linear classifiers with different optimiser settings, trained at once on one stream of features.

The classifiers of a grid see the same batches, so their products are one product: the batch [B, F] with all weights
[S · C, F]. The gradient of the cross-entropy is known (softmax − truth), so there is no graph to keep. The batches may
come from stored features or from an encoder.

Shapes: S classifiers, B images, F features, C classes.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carp.compute import distributed
from carp.evaluation.feature_arrays import Features, Labels, tensor
from carp.evaluation.result import Predicted
from carp.images.loading.order import even_batches
from carp.random import Purpose, key, seed_of

OptimiserName = Literal["sgd", "lars"]
Batch = tuple[Tensor, Tensor]  # features [B, F], labels [B]
Rows = NDArray[np.integer[Any]]
T = TypeVar("T", float, int, bool)

_MOMENTUM = 0.9
_TRUST = 0.001
_INITIAL_DEVIATION = 0.01


@dataclass(frozen=True)
class Classifier:
    """The optimiser settings of one classifier."""

    optimiser: OptimiserName
    lr: float
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Accuracies:
    """Shares of images that are classified correctly, one number per classifier, and the mean over the classes."""

    top1: list[float]
    top5: list[float]
    mean_per_class: list[float]

    def of(self, classifier: int, num_classes: int) -> dict[str, float]:
        """Return the values of one classifier; top-5 only with more than five classes."""
        top5 = {"top5": self.top5[classifier]} if num_classes > 5 else {}
        return {"top1": self.top1[classifier], **top5, "mean_per_class": self.mean_per_class[classifier]}

    def of_all(self) -> "Accuracies":
        """Gather the accuracies of the classifiers of all processes (see `own_classifiers`)."""
        return Accuracies(*(join_classifiers(values) for values in (self.top1, self.top5, self.mean_per_class)))


def own_classifiers(classifiers: Sequence[Classifier]) -> Sequence[Classifier]:
    """Return the classifiers that this process trains: under torchrun, each process has a share of the grid."""
    return classifiers[distributed.own_share(len(classifiers))]


def join_classifiers(values: list[T]) -> list[T]:
    """Gather one number per classifier from all processes."""
    return [value for part in distributed.gather(values) for value in part]


class LinearGrid:
    """The classifiers. All start from the same weights, which depend on the seed."""

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        num_features: int,
        num_classes: int,
        *,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.classifiers = list(classifiers)
        self.num_classes = num_classes
        generator = torch.Generator().manual_seed(seed_of(seed, Purpose.GRID_WEIGHTS))
        first_CF = _INITIAL_DEVIATION * torch.randn(num_classes, num_features, generator=generator)
        self.weight_SCF = first_CF.expand(len(classifiers), -1, -1).clone().to(device)
        self.bias_SC = torch.zeros(len(classifiers), num_classes, device=device)
        self._momentum_SCF = torch.zeros_like(self.weight_SCF)
        self._momentum_SC = torch.zeros_like(self.bias_SC)
        self._lr_S = torch.tensor([m.lr for m in classifiers], device=device)
        self._decay_S11 = torch.tensor([m.weight_decay for m in classifiers], device=device)[:, None, None]
        self._lars = torch.tensor([i for i, m in enumerate(classifiers) if m.optimiser == "lars"], device=device)
        self._decayed = any(m.weight_decay for m in classifiers)

    @torch.no_grad()
    def logits(self, x_BF: Tensor) -> Tensor:
        """Return the logits [B, S, C] of all classifiers."""
        flat = torch.addmm(self.bias_SC.flatten(), x_BF, self.weight_SCF.flatten(0, 1).T)
        return flat.view(len(x_BF), *self.bias_SC.shape)

    @torch.no_grad()
    def step(self, x_BF: Tensor, y_B: Tensor, *, lr_factor: float = 1.0) -> None:
        """Train every classifier on one batch, at its learning rate times `lr_factor`."""
        error_BSC = _softmax_(self.logits(x_BF))
        error_BSC[torch.arange(len(y_B)), :, y_B] -= 1
        error_BSC /= len(y_B)
        gradient_SCF = (error_BSC.flatten(1).T @ x_BF).view_as(self.weight_SCF)
        if self._decayed:
            gradient_SCF.addcmul_(self._decay_S11, self.weight_SCF)
        self._adapt(gradient_SCF)
        lr_S1 = lr_factor * self._lr_S[:, None]
        self._momentum_SCF.mul_(_MOMENTUM).add_(gradient_SCF)
        self._momentum_SC.mul_(_MOMENTUM).add_(error_BSC.sum(dim=0))
        self.weight_SCF.addcmul_(self._momentum_SCF, lr_S1[:, :, None], value=-1)
        self.bias_SC.addcmul_(self._momentum_SC, lr_S1, value=-1)

    def _adapt(self, update_SCF: Tensor) -> None:
        """LARS: the length of an update is proportional to the length of the weights; biases are not adapted."""
        if not len(self._lars):
            return
        weight_norms = torch.linalg.vector_norm(self.weight_SCF[self._lars], dim=(1, 2))
        update_norms = torch.linalg.vector_norm(update_SCF[self._lars], dim=(1, 2))
        moving = (weight_norms > 0) & (update_norms > 0)
        ratio_S = torch.ones(len(update_SCF), device=update_SCF.device)
        ratio_S[self._lars] = torch.where(moving, _TRUST * weight_norms / update_norms, 1.0)
        update_SCF.mul_(ratio_S[:, None, None])

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that changes during training."""
        return {
            "weight": self.weight_SCF,
            "bias": self.bias_SC,
            "weight_momentum": self._momentum_SCF,
            "bias_momentum": self._momentum_SC,
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in self.state_dict().items():
            value.copy_(state[name])

    def accuracy(self, batches: Iterable[Batch]) -> Accuracies:
        """Return the accuracies; 0 for a classifier that diverged. Among equal logits, the lower class ranks first."""
        device, num_classifiers = self.bias_SC.device, len(self.classifiers)
        top1_CS, top5_CS = torch.zeros(2, self.num_classes, num_classifiers, dtype=torch.int64, device=device)
        count_C = torch.zeros(self.num_classes, dtype=torch.int64, device=device)
        for x_BF, y_B in batches:
            logits_BSC = self.logits(x_BF)
            own_BS1 = logits_BSC.gather(2, y_B[:, None, None].expand(-1, num_classifiers, 1))
            earlier_B1C = (torch.arange(self.num_classes, device=device) < y_B[:, None])[:, None]
            before_BS = ((logits_BSC > own_BS1) | ((logits_BSC == own_BS1) & earlier_B1C)).sum(dim=2)
            top1_CS.index_add_(0, y_B, (before_BS < 1).long())
            top5_CS.index_add_(0, y_B, (before_BS < 5).long())
            count_C += torch.bincount(y_B, minlength=self.num_classes)
        finite_S, count_C = self.finite().cpu(), count_C.cpu()
        top1_CS, top5_CS = top1_CS.cpu() * finite_S, top5_CS.cpu() * finite_S
        occurs = count_C > 0
        per_class_CS = top1_CS[occurs].double() / count_C[occurs, None]
        return Accuracies(
            (top1_CS.sum(dim=0).double() / count_C.sum()).tolist(),
            (top5_CS.sum(dim=0).double() / count_C.sum()).tolist(),
            per_class_CS.mean(dim=0).tolist(),
        )

    def predict(self, batches: Iterable[Batch], classifier: int) -> Predicted:
        """Return the class that one classifier predicts for every image, and its probability."""
        found = [torch.softmax(self.logits(x_BF)[:, classifier].cpu().double(), dim=1).numpy() for x_BF, _ in batches]
        shares_NC = np.concatenate(found)
        classes = shares_NC.argmax(axis=1)  # the first of equal classes
        return Predicted(classes, shares_NC[np.arange(len(classes)), classes])

    def finite(self) -> Tensor:
        """Return which classifiers have not diverged, [S]."""
        return torch.isfinite(self.weight_SCF).flatten(1).all(dim=1) & torch.isfinite(self.bias_SC).all(dim=1)


def predictions_of(grid: LinearGrid, classifier: int, num_classifiers: int, batches: Iterable[Batch]) -> Predicted:
    """Return the predictions of one classifier, which one process has, on all processes."""
    own = range(num_classifiers)[distributed.own_share(num_classifiers)]
    found = grid.predict(batches, classifier - own.start) if classifier in own else None
    gathered = distributed.gather(None if found is None else [found.classes.tolist(), found.scores.tolist()])
    classes, scores = next(part for part in gathered if part is not None)
    return Predicted(np.array(classes), np.array(scores))


def _softmax_(logits_BSC: Tensor) -> Tensor:
    """Softmax over classes in place; with few classes several times as fast as PyTorch's own."""
    logits_BSC -= logits_BSC.amax(dim=2, keepdim=True)
    logits_BSC.exp_()
    logits_BSC /= logits_BSC.sum(dim=2, keepdim=True)
    return logits_BSC


def fit(
    grid: LinearGrid,
    batches: Callable[[int], Iterable[Batch]],
    *,
    epochs: int,
    lr_factor: Callable[[int], float],
    after_epoch: Callable[[int], None] | None = None,
) -> None:
    """Train a grid on `batches(epoch)` for every epoch.

    Args:
        grid: The classifiers.
        batches: The batches of an epoch, from any source.
        epochs: How many epochs.
        lr_factor: Factor of the learning rates in an epoch.
        after_epoch: Called at the end of every epoch.
    """
    for epoch in range(epochs):
        factor = lr_factor(epoch)
        for x_BF, y_B in batches(epoch):
            grid.step(x_BF, y_B, lr_factor=factor)
        if after_epoch is not None:
            after_epoch(epoch)


def cosine(epochs: int) -> Callable[[int], float]:
    """Return a factor that falls from 1 towards 0 along a cosine, constant within an epoch, as in iBOT's protocol."""
    return lambda epoch: 0.5 * (1 + math.cos(math.pi * epoch / epochs))


def shuffled(
    features: Features, labels: Labels, rows: Rows, *, batch_size: int, seed: int
) -> Callable[[int], Iterator[Batch]]:
    """Return batches, of nearly equal size, of these rows in an order that depends on (seed, epoch)."""

    def batches(epoch: int) -> Iterator[Batch]:
        order = rows[np.argsort(key(seed, Purpose.GRID_ORDER, epoch, np.arange(len(rows))), kind="stable")]
        return in_order(features, labels, order, batch_size=batch_size)

    return batches


def in_order(features: Features, labels: Labels, rows: Rows, *, batch_size: int = 1024) -> Iterator[Batch]:
    """Yield these rows of stored features once, in batches of nearly equal size, with one batch in memory at a time."""
    for batch in even_batches(len(rows), batch_size):
        yield tensor(features[rows[batch]]), tensor(labels[rows[batch]])
