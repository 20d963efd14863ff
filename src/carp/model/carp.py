"""Student and teacher, and the update of the teacher.

Shapes: V views, B images, D embedding, K prototypes.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from carp.config import ModelSettings
from carp.errors import ModelError
from carp.model.branch import Branch


class Embedded(NamedTuple):
    """The embeddings z (student) and w (teacher) of one batch, and the prototypes: the input of the loss."""

    z: list[Tensor]
    w: list[Tensor]
    prototypes_KD: Tensor
    teacher_prototypes_KD: Tensor


class Carp(nn.Module):
    """The student sees all views, the teacher only the two global ones.

    The teacher is an exponential moving average of the student's parameters; its batch norm uses the statistics of its
    own batches, and it has neither dropout nor stochastic depth. With `teacher_momentum: 0` the teacher *is* the
    student, and there is no second forward pass, unless `zero_momentum: copy` asks for a copy of the student.

    With `start_share`, the encoder of the teacher stays between that of the student and the weights that the run
    started from. Averages of a network and its fine-tuned version are often better than either, and forget less.
    """

    def __init__(self, config: ModelSettings, *, shard_seeds: Sequence[int] = ()) -> None:
        super().__init__()
        self.student = Branch(config, shard_seeds=shard_seeds)
        self.siamese = config.siamese
        self.teacher = self.student if self.siamese else copy.deepcopy(self.student)
        if not self.siamese:
            self.teacher.requires_grad_(False)
            _remove_dropout(self.teacher)
        self.start_share = config.start_share
        self.start = copy.deepcopy(self.student.encoder).requires_grad_(False) if self.start_share else None

    def forward(self, views: Sequence[Tensor]) -> Embedded:
        """Embed the views, each [B, 3, H, W]; the two global views come first."""
        z = self.embed_student(views)
        prototypes_KD = self.student.assigner()
        if self.siamese:
            w, teacher_prototypes_KD = [e.detach() for e in z[:2]], prototypes_KD.detach()
        else:
            with torch.no_grad():
                w = self.teacher.embed(views[:2])
                teacher_prototypes_KD = self.teacher.assigner()
        return Embedded(z, w, prototypes_KD, teacher_prototypes_KD)

    def embed_student(self, views: Sequence[Tensor]) -> list[Tensor]:
        """Return only the student's embeddings of the views, [B, D] each."""
        return self.student.embed(views)

    def load_encoder(self, tensors: Mapping[str, Tensor]) -> None:
        """Give all encoders these weights; the counters of batch norm may be missing."""
        for encoder in (self.student.encoder, self.teacher.encoder, *([] if self.start is None else [self.start])):
            missing, unexpected = encoder.load_state_dict(tensors, strict=False)
            wrong = [name for name in missing if encoder.state_dict()[name].is_floating_point()] + unexpected
            if wrong:
                raise ModelError(f"the weights do not fit the encoder: {wrong[0]} is missing or unexpected.")

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Teacher ← momentum · teacher + (1 − momentum) · student, as one multi-tensor operation."""
        if self.siamese:
            return
        followed: dict[str, Tensor] = dict(self.student.named_parameters())
        if self.start is not None:
            start = {f"encoder.{name}": parameter for name, parameter in self.start.named_parameters()}
            mixed = torch._foreach_lerp([followed[name] for name in start], list(start.values()), self.start_share)
            followed |= dict(zip(start, mixed, strict=True))
        torch._foreach_lerp_(list(self.teacher.parameters()), list(followed.values()), 1.0 - momentum)


def _remove_dropout(branch: nn.Module) -> None:
    """Disable dropout and stochastic depth in a branch, even in training mode, whatever timm calls their rates."""
    for part in branch.modules():
        for rate in ("drop_prob", "drop_rate", *(["p"] if isinstance(part, _DropoutNd) else [])):
            if isinstance(getattr(part, rate, None), float):
                setattr(part, rate, 0.0)
