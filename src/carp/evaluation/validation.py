"""k-NN of student and teacher while a run goes on."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from carp.config import Config
from carp.data.decode import Stored
from carp.data.random import Purpose, key
from carp.data.source import Source
from carp.errors import DataError
from carp.evaluation.knn import knn_accuracy, knn_leave_one_out
from carp.features.extract import extract
from carp.model.carp import Carp

_LARGEST_BANK = 10_000
_LARGEST_QUERIES = 5_000


def make_validation(
    config: Config, train: Source, validation: Source, device: torch.device
) -> Callable[[Carp], dict[str, float]]:
    """Return a function that measures a model.

    The bank is the training set if it has the validation set's classes, otherwise the validation set itself, every
    image left out in turn. Large sets are represented by a fixed random part.
    """
    if validation.labels is None:
        raise DataError(
            f"the validation set {validation.name} has no labels: put its images into one sub-folder per class."
        )
    queries = Part(validation, _LARGEST_QUERIES, config.seed)
    bank = Part(train, _LARGEST_BANK, config.seed) if train.classes == validation.classes else None
    k = min(20, len(bank or queries) - 1)

    def features(model: torch.nn.Module, source: Source) -> NDArray[np.float32]:
        return extract(model, source, size=config.global_size, device=device)

    def validate(model: Carp) -> dict[str, float]:
        branches = {"student": model.student}
        if not model.siamese:
            branches["teacher"] = model.teacher
        values = {}
        for name, branch in branches.items():
            queried = features(branch.encoder, queries)
            if bank is None:
                values[f"knn_{name}"] = knn_leave_one_out(queried, queries.labels, k=k)
            else:
                stored = features(branch.encoder, bank)
                values[f"knn_{name}"] = knn_accuracy(stored, bank.labels, queried, queries.labels, k=k)
        return values

    return validate


class Part:
    """At most `size` images of a labelled source, chosen by the seed."""

    def __init__(self, source: Source, size: int, seed: int) -> None:
        if source.labels is None:
            raise DataError(f"{source.name} has no labels: put its images into one sub-folder per class.")
        self._source = source
        order = np.argsort(key(seed, Purpose.BANK, np.arange(len(source))), kind="stable")
        self._indices = np.sort(order[:size])
        self.labels = source.labels[self._indices]
        self.classes, self.name, self.fingerprint = source.classes, source.name, source.fingerprint

    def __len__(self) -> int:
        return len(self._indices)

    def fetch(self, index: int) -> Stored:
        """One image as it is stored."""
        return self._source.fetch(int(self._indices[index]))

    def place(self, index: int) -> str:
        """Where one image lies."""
        return self._source.place(int(self._indices[index]))
