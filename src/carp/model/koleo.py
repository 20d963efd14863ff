"""KoLeo: every embedding keeps its distance from its nearest neighbour in the batch (Sablayrolles et al., 2019).

A block of N prototypes can tell two images apart by at most log N, and N random prototypes only by a soft function of
their angle (docs/decisions/0011). Images that are closer than that look the same to both terms of the loss, so nothing
separates them. KoLeo repels exactly these: the gradient of −log d is 1 / d, so the closest pairs count most. It needs
no prototypes and no temperature.

At the start of a run, all embeddings are close. A strong term then wins over the attraction, and the run loses time
before it learns anything (docs/decisions/0012). With ε = `distance`, the term is −log √(d² + ε²), whose gradient
d / (d² + ε²) is largest at d = ε and vanishes at 0.

Shapes: V views, B images, D embedding.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

STRONGEST_FREE_KOLEO = 1.0  # the largest weight that is safe for embeddings of free length (docs/decisions/0012)
LEAST_DISTANCE = 1e-4  # keeps the gradient finite for equal embeddings, such as those of blank images


def koleo(z_VBD: Tensor, distance: float = LEAST_DISTANCE) -> Tensor:
    """Return −log √(d² + distance²), d being the distance to the nearest neighbour, averaged over views and images.

    Distances are those of embeddings scaled to unit length, and neighbours are other images in the same view. A single
    image has no neighbour; the term is then 0.
    """
    if z_VBD.shape[1] < 2:
        return z_VBD.new_zeros(())
    with torch.autocast(z_VBD.device.type, enabled=False):
        unit_VBD = F.normalize(z_VBD if z_VBD.dtype == torch.float64 else z_VBD.float(), dim=-1)
        with torch.no_grad():
            cosines_VBB = unit_VBD @ unit_VBD.mT
            cosines_VBB.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
            nearest_VB = cosines_VBB.argmax(dim=-1)
        neighbours_VBD = torch.take_along_dim(unit_VBD, nearest_VB[..., None], dim=1)
        squares_VB = (unit_VBD - neighbours_VBD).square().sum(dim=-1)
        return -0.5 * (squares_VB + distance**2).log().mean()
