"""SwAV: predict the code of one view, balanced over prototypes, from another view.

Shapes: V views, B images, D embedding, Q images in the queue.
"""

from collections.abc import Sequence
from typing import cast

import torch
from lightly.loss import SwaVLoss
from lightly.models.modules import SwaVProjectionHead, SwaVPrototypes
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compare.method import Method, Moment, encoder_of, lars_rate
from benchmarks.compare.ranges import Choice, LogUniform
from carp.config import Config


class SwAV(Method):
    """Swapped assignments between views (Caron et al., 2020), with the queue that small batches need.

    `sharpness` is the temperature of the predictions, relative to that of the codes (`epsilon`, published: 0.05). Codes
    that are not sharper than predictions teach nothing, so the two temperatures are not searched independently. The
    colours are SimCLR's, as in the paper, at half the strength, which SimCLR's paper has for CIFAR-10.
    """

    name, title = "swav", "SwAV"
    source = "authors' script for batches of 256, 200 epochs; crops of their 2 × 224 script"
    fixed = {  # noqa: RUF012 - a ClassVar of the base
        "optimiser": "lars",
        "weight_decay": [1e-6, 1e-6],
        "projector_hidden": 512,
        "embedding": 128,
        "global_scale": [0.08, 1.0],
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
        "solarise": [0.0, 0.0, 0.0],
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(0.6),
        "temperature": LogUniform(0.08, 0.2, published=0.1),
        "sharpness": LogUniform(2.0, 6.0, published=2.0),
        "num_codes": Choice(256, 750, 3000, published=750),
        "queue_batches": Choice(0, 15, published=15),
    }
    lr_end = 0.001
    multi_crop = True
    constants = {  # noqa: RUF012
        "frozen": 0.05,  # share of the steps in which the prototypes do not move; authors: the first epoch, 5,005 steps
        "queue_starts": 15 / 200,  # share of the steps before the queue is filled
    }

    queue_VQD: Tensor

    def __init__(
        self, config: Config, temperature: float, sharpness: float, num_codes: int, queue_batches: int
    ) -> None:
        super().__init__(config)
        self.encoder, features = encoder_of(config)
        self.head = SwaVProjectionHead(features, config.projector_hidden, config.embedding)
        self.prototypes = SwaVPrototypes(config.embedding, num_codes)
        self.prototypes.heads[0].register_parameter("bias", None)  # the paper's prototypes have none
        self.criterion = SwaVLoss(temperature, sinkhorn_epsilon=temperature / sharpness)
        self.register_buffer("queue_VQD", torch.zeros(2, queue_batches * config.batch_size, config.embedding))

    def loss(self, views: Sequence[Tensor], moment: Moment) -> Tensor:
        """Return the cross entropy of the codes of the global views, predicted from all other views."""
        self.prototypes.normalize()
        z = [F.normalize(self.head(self.encoder(view)).float(), dim=-1) for view in views]
        codes = [self.prototypes(each) for each in z]
        return cast(Tensor, self.criterion(codes[:2], codes[2:], self._queue_codes(z[:2], moment))).squeeze()

    @torch.no_grad()
    def _queue_codes(self, z: Sequence[Tensor], moment: Moment) -> list[Tensor] | None:
        """Return the scores of earlier images, once the queue is full, and put the batch in front of them."""
        batch, length = len(z[0]), self.queue_VQD.shape[1]
        if not length or moment.progress < self.constants["queue_starts"]:
            return None
        full = bool(self.queue_VQD[:, -1].any())
        found = [self.prototypes(queue_QD) for queue_QD in self.queue_VQD] if full else None
        self.queue_VQD.copy_(torch.cat([torch.stack(list(z)).detach(), self.queue_VQD[:, : length - batch]], dim=1))
        return found

    def before_step(self, moment: Moment) -> None:
        """Keep the prototypes as they are during the first steps."""
        if moment.progress < self.constants["frozen"]:
            for parameter in self.prototypes.parameters():
                parameter.grad = None
