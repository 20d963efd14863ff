"""One optimiser step: views → embeddings → loss → gradients → check → move → teacher follows.

If there are several processes, each has its share of the images; gradients are exchanged once, while the backward pass
of the last micro-batch runs.

Shapes: V views, B images, D embedding.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from carp.compute import distributed
from carp.compute.gradient_sum import GradientSum
from carp.config import Config
from carp.images.loading.loader import Batch, normalise
from carp.model.carp import Carp, Embedded
from carp.model.head import PAIR_FACTOR
from carp.model.loss import LossTerms
from carp.model.partition import fixed_partition, random_partition
from carp.model.shared_loss import sharded_loss, shared_loss
from carp.random import Purpose, seed_of
from carp.training.accumulate import accumulate_exact, accumulate_fast
from carp.training.health import Health, measure
from carp.training.loss_scale import LossScale
from carp.training.micro_batch import divide
from carp.training.optimiser import set_hyperparameters
from carp.training.schedules import Schedules
from carp.training.shards import exchange, mean_over_shards, partition_inside_shards


@dataclass(frozen=True)
class StepResult:
    """What a step reports."""

    loss: float
    consistency: float
    kl_to_uniform: float
    koleo: float | None  # None without the term, or if `uniformity: collision` makes it unknown
    gradient_norm: float
    lr: float
    teacher_momentum: float
    entropy_weight: float
    loss_scale: float  # of the step, 1 except in fp16
    finite: bool  # whether the run may go on: loss and gradient are finite, or a lower loss scale may make them so
    applied: bool  # whether loss and gradient are finite
    health: Health | None


class Stepper:
    """Holds what all steps share; `__call__` is the step."""

    def __init__(
        self, model: Carp, optimiser: Optimizer, schedules: Schedules, config: Config, device: torch.device
    ) -> None:
        self.model, self.optimiser, self.schedules = model, optimiser, schedules
        self.config, self.device = config, device
        self.sharded = config.shards > 1 and distributed.world_size() > 1  # whether others hold other prototypes
        self.mark = 0  # of the partition: processes compare it to know that they are in step
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.loss_scale = LossScale(active=config.precision == "fp16")
        # The gradient of a shard of prototypes is complete already and stays where it is
        of_shard = {id(model.student.assigner.directions_KD)} if self.sharded else set()
        own_statistics = [] if config.sync_batch_norm else [b for b in model.buffers() if b.is_floating_point()]
        self.gradient_sum = GradientSum([p for p in self.trainable if id(p) not in of_shard], own_statistics)

    def __call__(self, batch: Batch, *, with_health: bool = False) -> StepResult:
        """Train on one batch. Nothing is applied if the loss or a gradient is not finite."""
        config, step = self.config, batch.step
        lr, entropy_weight = self.schedules.lr(step), self.schedules.entropy_weight(step)
        momentum = self.schedules.teacher_momentum(step)
        partition_PN = self.partition(step)
        set_hyperparameters(self.optimiser, lr=lr, weight_decay=self.schedules.weight_decay(step))

        def prepare(number: int, views: Sequence[Tensor]) -> list[Tensor]:
            who = (distributed.rank(),) if distributed.rank() else ()
            torch.manual_seed(seed_of(config.seed, Purpose.STEP, step, number, *who))  # dropout, stochastic depth
            return [
                normalise(
                    v,
                    self.device,
                    channels_last=config.channels_last,
                    mean=config.mean,
                    deviation=config.deviation,
                )
                for v in views
            ]

        def loss_of(number: int, embedded: Embedded, images: int) -> LossTerms:
            loss = sharded_loss if config.shards > 1 else shared_loss
            own_PN = self.partition(step, number) if number and config.accumulate == "independent" else partition_PN
            return loss(
                embedded,
                own_PN,
                images=images,
                entropy_weight=entropy_weight,
                pairs=config.pairs,
                uniformity=config.uniformity,
                koleo_weight=config.koleo_weight,
                koleo_distance=config.koleo_distance,
            )

        self.optimiser.zero_grad(set_to_none=True)
        scale = self.loss_scale.value
        micro_batches = divide(batch, config.micro_batch)
        exact = config.accumulate == "exact" and len(micro_batches) > 1
        half = torch.float16 if config.precision == "fp16" else torch.bfloat16
        once = [self.model.student.assigner.directions_KD] if exact else []  # the head runs over the whole batch
        with (
            self.gradient_sum.overlapping(len(micro_batches), once=once),
            torch.autocast(self.device.type, half, enabled=config.half),
        ):
            accumulate = accumulate_exact if exact else accumulate_fast
            seen = accumulate(self.model, micro_batches, prepare, loss_of, scale=scale)

        gradients = [p.grad for p in self.trainable if p.grad is not None]
        norm = self._unscaled_norm(gradients)
        loss, consistency, kl, gradient_norm = torch.stack([*seen.terms, norm]).tolist()
        applied = math.isfinite(loss) and math.isfinite(gradient_norm)
        finite = math.isfinite(loss) and (applied or self.loss_scale.can_fall)
        health = None
        if finite and with_health:
            z_BVD, w_BVD = (
                distributed.all_gather_rows(views_VBD.transpose(0, 1))
                for views_VBD in (seen.z_VBD[:2], torch.stack(seen.w))
            )
            mean = consistency / PAIR_FACTOR[config.pairs]
            teacher = (w_BVD.transpose(0, 1), seen.teacher_prototypes_KD)
            found = measure(mean, kl, z_BVD.transpose(0, 1), seen.prototypes_KD, partition_PN, teacher)
            health = mean_over_shards(found) if self.sharded else found
        if applied:
            if config.clip_gradient is not None:
                torch._foreach_mul_(gradients, (config.clip_gradient / (norm + 1e-6)).clamp(max=1.0))  # as in torch
            if config.teacher_update == "before":
                self.model.update_teacher(momentum)
            self.optimiser.step()
            if config.teacher_update == "after":
                self.model.update_teacher(momentum)
            exchange(self.model, self.optimiser, config, step)
        if finite:
            self.loss_scale.update(overflowed=not applied)
        koleo = None
        if config.koleo_weight and config.uniformity == "entropy":  # what is left of the loss
            koleo = (loss - consistency - entropy_weight * kl) / config.koleo_weight
        return StepResult(
            loss, consistency, kl, koleo, gradient_norm, lr, momentum, entropy_weight, scale, finite, applied, health
        )

    def partition(self, step: int, number: int = 0) -> Tensor:
        """The partition of a step, the same for every view and branch; independent micro-batches have their own."""
        K, N = self.config.num_prototypes, self.config.block_size
        if self.config.partition == "fixed":
            self.mark = seed_of(self.config.seed, Purpose.PARTITION, step)  # the partition says nothing about the step
            own = K // distributed.world_size() if self.config.shards > 1 else K
            return fixed_partition(own, N, device=self.device)
        if self.config.shards > 1:
            self.mark = seed_of(self.config.seed, Purpose.PARTITION, step)
            return partition_inside_shards(self.config, step, number).to(self.device)
        which = (number,) if number else ()
        generator = torch.Generator().manual_seed(seed_of(self.config.seed, Purpose.PARTITION, step, *which))
        partition_PN = random_partition(K, N, generator=generator)
        self.mark = zlib.crc32(partition_PN[0].numpy().tobytes())
        return partition_PN.to(self.device)

    def _unscaled_norm(self, gradients: list[Tensor]) -> Tensor:
        """Divide the gradients by the loss scale; return the norm of the whole gradient, shards of others included."""
        if self.loss_scale.active:
            torch._foreach_div_(gradients, self.loss_scale.value)
        of_shard = self.model.student.assigner.directions_KD.grad if self.sharded else None
        norm = torch.nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not of_shard])
        if of_shard is None:
            return norm
        squares = of_shard.square().sum()
        distributed.all_reduce_sum([squares])
        return (norm.square() + squares).sqrt()
