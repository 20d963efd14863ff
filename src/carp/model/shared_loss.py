"""The loss of a batch that several processes share: its value on all of them, its gradient in parts that add up.

Every process has some of the images and walks over all blocks. The mean assignment of a block is summed over processes
while the block is visited: K numbers a step in all. Consistency is a sum over own images, divided by the number of all.
So the gradient on own embeddings is that of the whole batch, and the gradients of weights and prototypes must be added
up over processes, not averaged.

Shapes: V views, B images, D embedding, K prototypes, P blocks, N prototypes in a block.
"""

from torch import Tensor

from carp import distributed
from carp.model.carp import Embedded
from carp.model.head import Whole
from carp.model.loss import LossTerms, carp_loss


def shared_loss(embedded: Embedded, partition_PN: Tensor, *, images: int, entropy_weight: float) -> LossTerms:
    """Loss of `images` images of which this process has embedded its own; for one process it is `carp_loss`."""
    if distributed.world_size() == 1:
        return carp_loss(*embedded, partition_PN, entropy_weight=entropy_weight)
    whole = Whole(images, len(partition_PN), lambda sums: distributed.add_up([sums]))
    own = carp_loss(*embedded, partition_PN, entropy_weight=entropy_weight, whole=whole)
    consistency = own.consistency.clone()
    distributed.add_up([consistency])
    return LossTerms(own.total + (consistency - own.consistency), consistency, own.kl_to_uniform)
