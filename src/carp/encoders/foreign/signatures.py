"""Signatures: tests that distinguish the files of a method from others with the same keys."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Contents:
    """The content of a file as one layout sees it."""

    tensors: Mapping[str, Tensor]  # of the layout's entry, by name without DDP's prefix, in the order of the file
    entries: frozenset[str]  # names at the top level of the file

    def matching(self, pattern: str) -> list[str]:
        """Return the names of the tensors that match the pattern in full."""
        return [name for name in self.tensors if re.fullmatch(pattern, name)]


Signature = Callable[[Contents], bool]


def has_tensor(pattern: str) -> Signature:
    """The file has a tensor whose name matches."""
    return lambda contents: bool(contents.matching(pattern))


def has_entry(entry: str) -> Signature:
    """The file has this entry at its top level."""
    return lambda contents: entry in contents.entries


def only_entry(entry: str) -> Signature:
    """The file has only this entry at its top level."""
    return lambda contents: contents.entries == {entry}


def queue_of(length: int) -> Signature:
    """The file has a queue of this many embeddings."""

    def has_queue(contents: Contents) -> bool:
        queue = contents.tensors.get("queue")
        return queue is not None and queue.shape[-1:] == (length,)

    return has_queue


def no_classifier(contents: Contents) -> bool:
    """The file has neither a classifier nor a projection head."""
    return not contents.matching(r"(fc|linear|classifier|head|prototypes|projection_head)\..*")


def statistics_last(contents: Contents) -> bool:
    """All batch-norm statistics follow all weights, because Haiku stores them separately."""
    names = list(contents.tensors)
    statistics = [i for i, name in enumerate(names) if name.endswith(("running_mean", "running_var"))]
    weights = [i for i, name in enumerate(names) if name.endswith((".weight", ".bias"))]
    return bool(statistics) and bool(weights) and min(statistics) > max(weights)


def counters_at_zero(contents: Contents) -> bool:
    """The batch-norm counters are 0: the network was never trained in PyTorch."""
    counters = [contents.tensors[name] for name in contents.matching(r".*num_batches_tracked")]
    return bool(counters) and not any(bool(counter.any()) for counter in counters)


def no_counters(contents: Contents) -> bool:
    """Batch norm has no batch counters."""
    return not contents.matching(r".*num_batches_tracked")


def tensorflow_order(contents: Contents) -> bool:
    """The filters have the memory layout of TensorFlow and Haiku: a converter permuted their axes without copying.

    Filters that PyTorch created never have that layout; they are contiguous or channels-last.
    """
    filters = [t for t in contents.tensors.values() if t.ndim == 4 and min(t.shape[:2]) > 1]
    return bool(filters) and all(t.stride()[:2] == (1, t.shape[0]) for t in filters)


def small_stem(contents: Contents) -> bool:
    """The first convolution is 3×3 and there are three stages."""
    stem = contents.tensors.get("conv1.weight")
    return stem is not None and stem.shape[-2:] == (3, 3) and not contents.matching(r"layer4\..*")


def never(_contents: Contents) -> bool:
    """Never matches: you have to name the method."""
    return False


def student_and_teacher(contents: Contents) -> bool:
    """The file has a student and a teacher, but no state of a loss."""
    return {"student", "teacher"} <= contents.entries and "dino_loss" not in contents.entries
