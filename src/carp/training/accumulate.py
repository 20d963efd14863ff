"""One gradient from several micro-batches.

`exact`: the loss of the whole batch, whatever the micro-batch. All micro-batches are embedded without gradient, the
head runs once over all embeddings, and their gradients are fed back while every micro-batch is embedded again.
`fast`: the mean of the micro-batches' own losses, each with its own mean assignment; one pass instead of two.
`independent` is `fast` with a partition for every micro-batch: the loss is given the number of the micro-batch.

Batch norm sees one micro-batch at a time in both. Its running statistics, and the teacher, are updated as if every
micro-batch had been seen once. If several processes share the batch, all have the same number of micro-batches, and the
i-th ones of all processes count as one: they pass through batch norm and, if `fast`, the head together.

Shapes: V views, B images of the batch, D embedding, K prototypes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from carp.model.carp import Carp, Embedded
from carp.model.loss import LossTerms

Views = Sequence[Tensor]
Prepare = Callable[[int, Views], list[Tensor]]  # number of the micro-batch, raw views → views as the model takes them
# Number of the micro-batch (0 for the whole batch), embeddings, number of images that all processes have of them
Loss = Callable[[int, Embedded, int], LossTerms]


class MicroBatch(NamedTuple):
    """Some images of a batch."""

    views: Views
    images: int
    """Number of images of all processes; `views` are those of this process."""


class Accumulated(NamedTuple):
    """Loss terms of the batch, without gradient, and what the head saw (of the last micro-batch when `fast`)."""

    terms: LossTerms
    z_VBD: Tensor
    prototypes_KD: Tensor
    w: list[Tensor]
    teacher_prototypes_KD: Tensor


def accumulate_fast(
    model: Carp, micro_batches: Sequence[MicroBatch], prepare: Prepare, loss: Loss, *, scale: float = 1.0
) -> Accumulated:
    """Add the gradient of every micro-batch's own loss, weighted by its share of the images, times `scale`."""
    num_images = sum(images for _, images in micro_batches)
    sums: list[Tensor] = []
    for i, (views, images) in enumerate(micro_batches):
        embedded: Embedded = model(prepare(i, views))
        terms, share = loss(i, embedded, images), images / num_images
        (terms.total * (share * scale)).backward()  # type: ignore[no-untyped-call]
        sums.append(torch.stack(terms).detach() * share)
    z_VBD = torch.stack(embedded.z).detach()
    terms = LossTerms(*torch.stack(sums).sum(dim=0))
    return Accumulated(terms, z_VBD, embedded.prototypes_KD.detach(), embedded.w, embedded.teacher_prototypes_KD)


def accumulate_exact(
    model: Carp, micro_batches: Sequence[MicroBatch], prepare: Prepare, loss: Loss, *, scale: float = 1.0
) -> Accumulated:
    """Add the gradient of the loss of the whole batch, times `scale`."""
    with torch.no_grad(), _frozen_statistics(model.student):
        parts: list[Embedded] = [model(prepare(i, views)) for i, (views, _) in enumerate(micro_batches)]
    torch.clear_autocast_cache()  # some versions of torch would reuse weights that were cast without gradient
    z_VBD = _join([part.z for part in parts]).requires_grad_()
    whole = Embedded(
        list(z_VBD.unbind()),
        list(_join([part.w for part in parts]).unbind()),
        model.student.assigner(),
        parts[0].teacher_prototypes_KD,
    )
    terms = loss(0, whole, sum(images for _, images in micro_batches))
    (terms.total * scale).backward()  # type: ignore[no-untyped-call]
    assert z_VBD.grad is not None
    start = 0
    for i, (views, _) in enumerate(micro_batches):
        z = model.embed_student(prepare(i, views))
        gradients = z_VBD.grad[:, start : start + len(views[0])]
        torch.autograd.backward(z, list(gradients.unbind()))
        start += len(views[0])
    terms = LossTerms(*(term.detach() for term in terms))
    return Accumulated(terms, z_VBD.detach(), whole.prototypes_KD.detach(), whole.w, whole.teacher_prototypes_KD)


def _join(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    """Views of micro-batches to views of the batch, [V, B, D]."""
    return torch.stack([torch.cat(view) for view in zip(*parts, strict=True)])


@contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norm in training mode that leaves its running statistics alone."""
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
