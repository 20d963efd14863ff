"""Ideas for a better CARP, each a method of its own: the same number of trials as CARP, judged by held-out images.

An idea that is ahead of CARP by more than the noise on two datasets becomes the default of CARP's recipes; the others
stay here, so that the next one who has them finds what they were worth. What an idea adds to CARP is the whole of its
class.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compare.method import Method, lars_rate, width
from benchmarks.compare.methods.carp_itself import CarpItself
from benchmarks.compare.ranges import Choice, LogUniform
from carp.config import Config
from carp.model.carp import Embedded


class Collision(CarpItself):
    """Repel different images only: `uniformity: collision`, at half the weight of the entropy."""

    name, title = "carp-collision", "CARP, collision"
    source = "this project"
    fixed = {**CarpItself.fixed, "uniformity": "collision"}  # noqa: RUF012 - a ClassVar of the base
    search = {**CarpItself.search, "entropy_weight": LogUniform(0.5, 5.0, published=0.5)}  # noqa: RUF012


class SmallCrops(CarpItself):
    """Four crops of half the side, and fewer steps, so that the whole takes about as long as two views."""

    name, title = "carp-crops", "CARP, small crops"
    source = "the paper's multi-crop, with fewer and smaller crops"
    fixed = {  # noqa: RUF012
        **CarpItself.fixed,
        "local_views": 4,
        "local_scale": [0.1, 0.4],
        "global_scale": [0.3, 1.0],
    }
    length = 0.7


class SharpTeacher(CarpItself):
    """Make the teacher's assignments more certain than the student's, as DINO does."""

    name, title = "carp-sharp", "CARP, sharper teacher"
    source = "DINO's temperatures (0.1 / 0.04)"
    search = {**CarpItself.search, "sharpening": LogUniform(1.0, 4.0, published=2.5)}  # noqa: RUF012

    def __init__(self, config: Config, sharpening: float) -> None:
        super().__init__(config)
        self.sharpening = sharpening

    def embedded(self, views: Sequence[Tensor]) -> Embedded:
        """Return longer embeddings of the teacher: its logits are larger."""
        found = super().embedded(views)
        return found._replace(w=[self.sharpening * w for w in found.w])


class Spread(CarpItself):
    """Push every embedding away from its nearest neighbour in the batch (KoLeo, as in DINOv2): `koleo_weight`."""

    name, title = "carp-spread", "CARP, KoLeo"
    source = "DINOv2's weight 0.1"
    search = {**CarpItself.search, "spread": LogUniform(0.02, 1.0, published=0.1)}  # noqa: RUF012

    @classmethod
    def configure(cls, common: Mapping[str, Any], trial: Mapping[str, Any], *, num_images: int) -> Config:
        """Return the configuration of a trial."""
        return super().configure({**common, "koleo_weight": trial["spread"]}, trial, num_images=num_images)

    @classmethod
    def build(cls, config: Config, trial: Mapping[str, Any]) -> Method:  # noqa: ARG003 - `spread` is in the configuration
        """Return the method; it has no settings of its own."""
        return cls(config)


class StrongSpread(CarpItself):
    """KoLeo as strong as the attraction, but weak between neighbours closer than 0.5; embeddings of fixed length."""

    name, title = "carp-koleo", "CARP, strong KoLeo"
    source = "the paper, with the weight of decision 12"
    fixed = {**CarpItself.fixed, "koleo_distance": 0.5}  # noqa: RUF012
    search = {  # noqa: RUF012
        **CarpItself.search,
        "embedding_length": Choice(22.6, published=22.6),
        "koleo_weight": LogUniform(0.5, 8.0, published=3.0),
    }


class Recipe(StrongSpread):
    """The head of the recipes `folder` and `small-images`, whose values are trial 0, and a search like VICReg's.

    Momentum and entropy weight are the recipes', so the width of the projector is searched, as for every method with at
    most two other settings.
    """

    name, title = "carp-recipe", "CARP, recipe"
    source = "recipe `folder`"
    fixed = {  # noqa: RUF012
        **{key: value for key, value in StrongSpread.fixed.items() if key != "projector_hidden"},
        "teacher_momentum": [0.9, 1.0],
        "entropy_weight": 6.0,
        "embedding_length": 22.6,
    }
    search = {  # noqa: RUF012
        "lr": lars_rate(4.0),
        "projector_hidden": width(1024),
        "koleo_weight": StrongSpread.search["koleo_weight"],
    }


class Memory(CarpItself):
    """Prototypes that are not learned: the last embeddings of the teacher (MaSSL, Silva and others, 2024).

    The memory begins with random directions. There is no gradient into it, and both branches use the same prototypes.
    """

    name, title = "carp-memory", "CARP, memory"
    source = "MaSSL: blocks of a memory of 65,536 embeddings"
    fixed = {key: value for key, value in CarpItself.fixed.items() if key != "num_prototypes"}  # noqa: RUF012
    search = {  # noqa: RUF012
        **CarpItself.search,
        "num_prototypes": Choice(4096, 16_384, published=16_384),
    }

    memory_KD: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model.student.assigner.requires_grad_(False)
        self.register_buffer("memory_KD", self.model.teacher.assigner().detach().clone())

    def embedded(self, views: Sequence[Tensor]) -> Embedded:
        """Return the memory as prototypes, and put the batch in front of it for the next step."""
        memory_KD = self.memory_KD.clone()
        found = super().embedded(views)._replace(prototypes_KD=memory_KD, teacher_prototypes_KD=memory_KD)
        newest = F.normalize(torch.cat(found.w).float(), dim=-1)
        self.memory_KD.copy_(torch.cat([newest, memory_KD])[: len(memory_KD)])
        return found
