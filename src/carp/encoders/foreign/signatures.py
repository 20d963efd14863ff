"""What tells a method's files from others with the same keys."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Contents:
    """What a file holds, from the view of one layout."""

    tensors: Mapping[str, Tensor]  # of the layout's entry, by their names without DDP's prefix, in the file's order
    entries: frozenset[str]  # names at the top of the file

    def matching(self, pattern: str) -> list[str]:
        """The tensors whose whole name matches."""
        return [name for name in self.tensors if re.fullmatch(pattern, name)]


Tell = Callable[[Contents], bool]


def tensor(pattern: str) -> Tell:
    """A tensor of such a name."""
    return lambda contents: bool(contents.matching(pattern))


def beside(entry: str) -> Tell:
    """An entry of that name at the top of the file."""
    return lambda contents: entry in contents.entries


def only(entry: str) -> Tell:
    """Nothing at the top of the file but that entry."""
    return lambda contents: contents.entries == {entry}


def queue_of(length: int) -> Tell:
    """A queue of so many embeddings."""

    def tell(contents: Contents) -> bool:
        queue = contents.tensors.get("queue")
        return queue is not None and queue.shape[-1:] == (length,)

    return tell


def no_classifier(contents: Contents) -> bool:
    """Nothing but an encoder."""
    return not contents.matching(r"(fc|linear|classifier|head|prototypes|projection_head)\..*")


def statistics_last(contents: Contents) -> bool:
    """All statistics of batch norm stand behind all weights, as Haiku keeps them apart."""
    names = list(contents.tensors)
    statistics = [i for i, name in enumerate(names) if name.endswith(("running_mean", "running_var"))]
    weights = [i for i, name in enumerate(names) if name.endswith((".weight", ".bias"))]
    return bool(statistics) and bool(weights) and min(statistics) > max(weights)


def counters_at_zero(contents: Contents) -> bool:
    """Batch norm counted no batch: the network was never trained in PyTorch."""
    counters = [contents.tensors[name] for name in contents.matching(r".*num_batches_tracked")]
    return bool(counters) and not any(bool(counter.any()) for counter in counters)


def no_counters(contents: Contents) -> bool:
    """Batch norm has no counters of batches."""
    return not contents.matching(r".*num_batches_tracked")


def tensorflow_order(contents: Contents) -> bool:
    """Filters lie in memory as TensorFlow and Haiku keep them: a converter gave them other axes, and moved nothing.

    PyTorch's own filters are never in that order, neither contiguous nor channels-last.
    """
    filters = [t for t in contents.tensors.values() if t.ndim == 4 and min(t.shape[:2]) > 1]
    return bool(filters) and all(t.stride()[:2] == (1, t.shape[0]) for t in filters)


def small_stem(contents: Contents) -> bool:
    """The first convolution is 3×3 and there are three stages."""
    stem = contents.tensors.get("conv1.weight")
    return stem is not None and stem.shape[-2:] == (3, 3) and not contents.matching(r"layer4\..*")


def never(_contents: Contents) -> bool:
    """Nothing tells: the method has to be named."""
    return False


def student_and_teacher(contents: Contents) -> bool:
    """Student and teacher, and no loss with a state."""
    return {"student", "teacher"} <= contents.entries and "dino_loss" not in contents.entries
