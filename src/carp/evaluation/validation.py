"""k-NN of student and teacher while a run goes on."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from carp import distributed
from carp.config import Config
from carp.data.part import Part, at_random
from carp.data.quarantine import Unreadable, nothing_to_read
from carp.data.source import Source, read, single_labels
from carp.errors import UnreadableImageError
from carp.evaluation.knn import knn_accuracy, knn_leave_one_out
from carp.features.extract import extract
from carp.model.carp import Carp

_LARGEST_BANK = 10_000
_LARGEST_QUERIES = 5_000
_NEIGHBOURS = 20
_ENOUGH_TO_SHARE = 100  # fewer images are encoded by every process


def make_validation(
    config: Config,
    train: Source,
    validation: Source,
    device: torch.device,
    *,
    warn: Callable[[str], None] = lambda _: None,
) -> Callable[[Carp], dict[str, float]]:
    """Return a function that measures a model.

    The bank is the training set if it has the validation set's classes, otherwise the validation set itself, every
    image left out in turn. Large sets are represented by a fixed random part. Images that cannot be read are left out.
    """
    single_labels(validation, "validation by k-NN")
    queries = at_random(validation, _LARGEST_QUERIES, seed=config.seed)
    bank = None
    if train.classes == validation.classes:
        bank = at_random(train, _LARGEST_BANK, seed=config.seed)
    for source in (queries, bank) if bank else (queries,):
        _check_readable(source)
    told: set[str] = set()

    def labelled(model: torch.nn.Module, source: Source) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        first, last = distributed.share(len(source), distributed.rank())
        if len(source) < _ENOUGH_TO_SHARE:
            first, last = 0, len(source)
        found = extract(model, Part(source, np.arange(first, last)), size=config.global_size, device=device)
        if source is queries and (note := found.note()) and note not in told:  # training tells of its own images
            told.add(note)
            warn(f"validation: {note}")
        assert source.labels is not None
        features, indices = torch.from_numpy(found.features), torch.from_numpy(first + np.asarray(found.indices))
        if last - first < len(source):
            features, indices = distributed.join_rows(features), distributed.join_rows(indices)
        return features.numpy(), source.labels[indices.numpy()]

    def validate(model: Carp) -> dict[str, float]:
        branches = {"student": model.student}
        if not model.siamese:
            branches["teacher"] = model.teacher
        values = {}
        for name, branch in branches.items():
            queried = labelled(branch.encoder, queries)
            stored = labelled(branch.encoder, bank) if bank else queried
            k = max(1, min(_NEIGHBOURS, len(stored[0]) - 1))
            values[f"knn_{name}"] = (
                knn_leave_one_out(*queried, k=k) if bank is None else knn_accuracy(*stored, *queried, k=k)
            )
        return values

    return validate


def _check_readable(source: Source) -> None:
    """Raise now, not after the first epoch, when there is no image that can be read."""
    unreadable = []
    for index in range(len(source)):
        try:
            read(source, index)
        except UnreadableImageError as error:
            unreadable.append(Unreadable(index, error.place, error.reason))
        else:
            return
    raise nothing_to_read(source.name, unreadable)
