"""`carp.CarpCallback`: the loss of CARP and its diagnosis inside someone else's Lightning training loop."""

import copy
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from carp.config import check_block_size
from carp.errors import ConfigError, MissingExtraError
from carp.model.assigner import Assigner
from carp.model.loss import LossTerms, carp_loss
from carp.model.partition import random_partition
from carp.model.projector import Projector
from carp.training.course import Course
from carp.training.health import Diagnosis, Verdict, measure

if TYPE_CHECKING:
    Callback: Any = object
else:
    try:  # a trainer accepts only callbacks of its own package, of which there are two
        if "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
            from lightning.pytorch import Callback
        else:
            from pytorch_lightning import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise MissingExtraError("CarpCallback needs Lightning. Run `pip install lightning`.") from None

Views = Callable[[Any], tuple[Tensor, Tensor]]
_ATTRIBUTE = "carp"  # of the LightningModule: student and teacher heads are part of its state and parameters
_GRAVE = {Verdict.COLLAPSED, Verdict.NOT_LEARNING, Verdict.AT_RISK}


class _Head(nn.Module):
    """Projector and prototypes on top of an encoder that belongs to someone else; the teacher has copies of all."""

    def __init__(self, encoder: nn.Module, features: int, hidden: int, embedding: int, num_prototypes: int) -> None:
        super().__init__()
        self.projector = Projector(features, hidden, embedding)
        self.assigner = Assigner(num_prototypes, embedding)
        self.teacher = nn.ModuleList([copy.deepcopy(part) for part in (encoder, self.projector, self.assigner)])
        self.teacher.requires_grad_(False)

    def loss(self, encoder: nn.Module, views: tuple[Tensor, Tensor], block_size: int, entropy_weight: float) -> "_Step":
        """Return the loss of two views, and what the diagnosis needs."""
        z = [self.projector(encoder(view)) for view in views]
        with torch.no_grad():
            w = [self.teacher[1](self.teacher[0](view)) for view in views]
        prototypes, teacher_prototypes = self.assigner(), self.teacher[2]()
        partition = random_partition(len(prototypes), block_size, device=prototypes.device)
        terms = carp_loss(z, w, prototypes, teacher_prototypes, partition, entropy_weight=entropy_weight)
        return _Step(terms, torch.stack([view.detach() for view in z]), prototypes.detach(), partition)

    @torch.no_grad()
    def update_teacher(self, encoder: nn.Module, momentum: float) -> None:
        """Move the teacher towards the student; statistics of batch norm are copied."""
        for part, own in zip(self.teacher, (encoder, self.projector, self.assigner), strict=True):
            for ours, theirs in zip(part.parameters(), own.parameters(), strict=True):
                ours.lerp_(theirs.to(ours.dtype), 1 - momentum)
            for kept, given in zip(part.buffers(), own.buffers(), strict=True):
                kept.copy_(given)


class _Step:
    def __init__(self, terms: LossTerms, z_VBD: Tensor, prototypes_KD: Tensor, partition_PN: Tensor) -> None:
        self.terms, self.z_VBD, self.prototypes_KD, self.partition_PN = terms, z_VBD, prototypes_KD, partition_PN


class CarpCallback(Callback):  # type: ignore[misc]
    """Adds the loss of CARP to the loss of a LightningModule, and diagnoses it while it trains.

    Give it to a `Trainer`. The module keeps its own `training_step`; the loss that this returns grows by `weight` times
    the loss of CARP. Projector, prototypes and teacher become part of the module (`module.carp`): its
    `configure_optimizers` must give `self.parameters()`, and its checkpoints contain them.

    Logged: `carp/consistency`, `carp/kl_to_uniform` and, every `health_steps` steps, `carp/agreement`,
    `carp/effective_rank` and `carp/imbalance`. `diagnosis` has the last verdict; one that is grave is also printed.

    Args:
        views: A function from a batch to two views of its images, each a tensor that the encoder takes.
        features: The number of features that the encoder returns, [images, features].
        encoder: The name of the module's attribute that is the encoder.
        embedding: The length of the embeddings.
        hidden: The width of the projector.
        num_prototypes: The number of prototypes.
        block_size: Prototypes in a block, a divisor of `num_prototypes`.
        entropy_weight: The weight of the entropy term; raise it if the diagnosis says so.
        weight: The weight of the loss of CARP beside the module's own.
        momentum: The share of the teacher that every step keeps.
        health_steps: Steps between two diagnoses.
    """

    def __init__(
        self,
        views: Views,
        features: int,
        *,
        encoder: str = "encoder",
        embedding: int = 128,
        hidden: int = 512,
        num_prototypes: int = 4096,
        block_size: int = 128,
        entropy_weight: float = 2.0,
        weight: float = 1.0,
        momentum: float = 0.99,
        health_steps: int = 50,
    ) -> None:
        super().__init__()
        check_block_size(num_prototypes, block_size)
        self._views, self._encoder, self._sizes = views, encoder, (features, hidden, embedding, num_prototypes)
        self._block_size, self._entropy_weight, self._weight = block_size, entropy_weight, weight
        self._momentum, self._health_steps = momentum, health_steps
        self._course: Course | None = None
        self._last: _Step | None = None
        self.diagnosis: Diagnosis | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - as Lightning calls it
        """Add the head to the module and its loss to the module's own, before the optimiser is made."""
        if stage != "fit":
            return
        if not pl_module.automatic_optimization:
            raise ConfigError(
                "CarpCallback needs automatic optimisation. Call carp.carp_loss in your own step instead."
            )
        encoder = self._encoder_of(pl_module)
        if not hasattr(pl_module, _ATTRIBUTE):
            setattr(pl_module, _ATTRIBUTE, _Head(encoder, *self._sizes))
        self._course = Course(encoder)
        own_step = pl_module.training_step

        def training_step(batch: Any, *arguments: Any, **named: Any) -> Any:
            own = own_step(batch, *arguments, **named)
            if own is None:  # the module skips this batch
                return None
            added = self._weight * self._loss(pl_module, batch)
            return {**own, "loss": own["loss"] + added} if isinstance(own, dict) else own + added

        pl_module.training_step = training_step

    def _encoder_of(self, pl_module: Any) -> nn.Module:
        found = getattr(pl_module, self._encoder, None)
        if not isinstance(found, nn.Module):
            raise ConfigError(
                f"the module, a {type(pl_module).__name__}, has no encoder '{self._encoder}'. Give the name of the "
                "attribute with encoder=."
            )
        return found

    def _loss(self, pl_module: Any, batch: Any) -> Tensor:
        head = cast(_Head, getattr(pl_module, _ATTRIBUTE))
        step = head.loss(self._encoder_of(pl_module), self._views(batch), self._block_size, self._entropy_weight)
        self._last = step
        pl_module.log("carp/consistency", step.terms.consistency.detach())
        pl_module.log("carp/kl_to_uniform", step.terms.kl_to_uniform.detach())
        return step.terms.total

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Let the teacher follow, and diagnose."""
        head, step = cast(_Head, getattr(pl_module, _ATTRIBUTE)), self._last
        head.update_teacher(self._encoder_of(pl_module), self._momentum)
        done = int(trainer.global_step)
        if step is None or self._course is None or (done > 1 and done % self._health_steps):
            return
        pairs = float(step.terms.consistency) / 2  # a pair is counted in both directions
        health = measure(pairs, float(step.terms.kl_to_uniform), step.z_VBD, step.prototypes_KD, step.partition_PN)
        before, self.diagnosis = self.diagnosis, self._course.judge(done, health)
        for name in ("agreement", "effective_rank", "imbalance"):
            pl_module.log(f"carp/{name}", float(getattr(health, name)))
        changed = before is None or before.verdict is not self.diagnosis.verdict
        if changed and self.diagnosis.verdict in _GRAVE and trainer.is_global_zero:
            sys.stderr.write(f"carp: step {done}: {self.diagnosis}\n")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Give the module its own step back; the head stays, so that training can go on."""
        pl_module.__dict__.pop("training_step", None)
        self._last = None
