"""Random partitions of the prototypes into blocks.

Shapes: K prototypes, P blocks, N prototypes in a block.
"""

import torch
from torch import Tensor

from carp.config import check_block_size


def random_partition(
    num_prototypes: int,
    block_size: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Divide all prototypes at random into blocks of equal size.

    The permutation is always drawn on the CPU, so that a seed gives the same partition on every device.

    Args:
        num_prototypes: K.
        block_size: N, a divisor of K.
        generator: A CPU generator; by default torch's global one.
        device: The device of the result; by default the CPU.

    Returns:
        `partition_PN`: a LongTensor of prototype indices, one row per block. Together, the rows are a permutation.
    """
    check_block_size(num_prototypes, block_size)
    order_K = torch.randperm(num_prototypes, generator=generator)
    return order_K.view(-1, block_size).to(device or "cpu")


def fixed_partition(num_prototypes: int, block_size: int, *, device: torch.device | str | None = None) -> Tensor:
    """Return sequential blocks [P, N]: the paper's constant partition."""
    check_block_size(num_prototypes, block_size)
    return torch.arange(num_prototypes, device=device).view(-1, block_size)
