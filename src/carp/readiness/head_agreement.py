"""The prototype head on the device, in float32, against the paper's pseudo-code in float64 on the CPU.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from carp.model.loss import LossTerms, carp_loss, reference_loss
from carp.model.partition import random_partition
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject

_V, _B, _D, _K = 2, 12, 32, 64
_TOLERANCE = 1e-4  # of the loss and, in norm, of each gradient; float32 rounds at 1e-7
# Name: prototypes in a block, length of the embeddings. The product ⟨s, t⟩ of long ones underflows in float32.
_CASES = {"blocks": (8, 4.0), "one block": (_K, 4.0), "blocks of one": (1, 4.0), "underflow": (8, 300.0)}


def check_head(subject: Subject) -> Iterator[Finding]:
    """Yield one finding per kind of block."""
    for name, (block, length) in _CASES.items():
        difference = head_difference(subject.device, block, length)
        yield judged(
            f"head, {name}",
            difference < _TOLERANCE,
            f"loss and gradients on {subject.device} differ from float64 by {difference:.1e} (allowed: "
            f"{_TOLERANCE:.0e})",
            "this build of torch computes wrong numbers on this device: install another version",
            values={"relative_difference": difference},
        )


def head_difference(device: torch.device, block: int, length: float) -> float:
    """Return the largest relative difference of the loss and of its gradients."""
    generator = torch.Generator().manual_seed(block)

    def draw(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)

    z, w = length * draw(_V, _B, _D), length * draw(2, _B, _D)
    prototypes, teacher = draw(_K, _D), draw(_K, _D)
    partition = random_partition(_K, block, generator=generator)
    expected = _loss_and_gradients(reference_loss, z, w, prototypes, teacher, partition)
    z, w, prototypes, teacher = (x.detach().to(device, torch.float32) for x in (z, w, prototypes, teacher))
    found = _loss_and_gradients(carp_loss, z, w, prototypes, teacher, partition.to(device))
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, expected, strict=True))


def _loss_and_gradients(
    loss: Callable[..., LossTerms], z: Tensor, w: Tensor, prototypes: Tensor, teacher: Tensor, partition: Tensor
) -> list[Tensor]:
    z, prototypes = z.requires_grad_(), prototypes.requires_grad_()
    total = loss(z, w, prototypes, teacher, partition).total
    gradients = torch.autograd.grad(total, [z, prototypes])
    return [x.detach().to("cpu", torch.float64) for x in (total, *gradients)]
