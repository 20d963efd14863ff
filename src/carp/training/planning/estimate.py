"""Parameters and memory of a run, estimated before it starts.

Activations are counted, not guessed: the student runs on the meta device, which computes shapes only, and the sizes of
all tensors that autograd keeps for the backward pass are summed.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from carp.compute import distributed
from carp.compute.device import choose_device
from carp.config import Config
from carp.errors import ModelError
from carp.images.loading.in_memory import is_held
from carp.images.loading.upload import STEPS_HELD
from carp.images.views.view_parameters import view_kinds
from carp.model.branch import Branch
from carp.model.encoder import check_patches
from carp.model.head import blocks_per_chunk

_FLOAT = 4


@dataclass(frozen=True)
class Estimate:
    """Numbers of parameters and bytes of memory."""

    encoder_parameters: int
    projector_parameters: int
    prototype_parameters: int
    weights_bytes: int  # student, teacher, gradients, optimiser state, the encoder of the start
    activation_bytes: int  # kept for the backward pass of one micro-batch
    head_bytes: int  # buffers of the pass over the partition
    views_bytes: int  # of the steps that a GPU holds
    small_stem: bool  # whether the encoder's own stem was replaced

    @property
    def total_bytes(self) -> int:
        """Peak memory, without the data loader and the libraries themselves."""
        return self.weights_bytes + self.activation_bytes + self.head_bytes + self.views_bytes


def estimate(config: Config, *, on_gpu: bool | None = None) -> Estimate:
    """Estimate the memory that one process needs for training; by default on the device of the settings."""
    with torch.device("meta"):
        branch = Branch(config)
    check_patches(branch.encoder, config.encoder, {"local_size": config.local_size} if config.local_views else {})
    held = distributed.world_size() if config.shards > 1 else 1  # each process holds its share of the prototypes
    counts = _count(branch.encoder), _count(branch.projector), _count(branch.assigner) // held
    copies = 2 + (not config.siamese) + (2 if config.optimiser == "adamw" else 1)
    share = distributed.largest_share(config.batch_size)
    batch = min(share, config.micro_batch or share)
    activations = 2 * _kept_for_backward(branch, config.global_size, batch)
    if config.local_views:
        activations += config.local_views * _kept_for_backward(branch, config.local_size, batch)
    if config.half:
        activations //= 2
    whole = share if config.accumulate == "exact" else batch
    if held > 1:  # the head of a shard sees the images of all processes
        whole *= held
    small_stem = isinstance(getattr(branch.encoder, "maxpool", None), nn.Identity)
    on_gpu = choose_device(config.device).type == "cuda" if on_gpu is None else on_gpu
    head, views = _head(config, whole, held), _views(config, share) if on_gpu else 0
    numbers = sum(counts) * copies + (counts[0] if config.start_share else 0)
    return Estimate(*counts, numbers * _FLOAT, activations, head, views, small_stem)


def _views(config: Config, share: int) -> int:
    """Return the bytes of views on a GPU: one per number for photographs, floats for small images."""
    numbers = sum(3 * kind.size**2 for kind in view_kinds(config))
    return STEPS_HELD * share * numbers * (_FLOAT if is_held(config) else 1)


def _head(config: Config, batch: int, held: int) -> int:
    """Return the bytes of three chunks of logits, of embeddings and prototypes of both branches, and of gradients."""
    views, size = 4 + config.local_views, max(2, config.block_size)
    chunk = views * batch * size * blocks_per_chunk(views, batch, size)
    embeddings = 2 * views * batch * config.embedding
    images = batch * (1 if held > 1 else distributed.world_size())
    cosines = 2 * images**2 if config.koleo_weight else 0  # of all images, in two views
    return (3 * chunk + embeddings + cosines + 3 * config.num_prototypes // held * config.embedding) * _FLOAT


def _kept_for_backward(branch: Branch, size: int, batch: int) -> int:
    """Return the bytes that autograd keeps for one view of a batch, scaled from two images."""
    kept: dict[tuple[int, int], int] = {}
    weights = {id(p.untyped_storage()) for p in branch.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if id(storage) not in weights:
            kept[(id(storage), storage.nbytes())] = storage.nbytes()
        alive.append(tensor)
        return tensor

    alive: list[Tensor] = []  # keeps ids unique
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        try:
            branch(torch.empty(2, 3, size, size, device="meta"))
        except Exception as error:  # any exception, depending on the encoder
            reason = " ".join(str(error).split())
            raise ModelError(f"the encoder cannot take images of {size} × {size} pixels: {reason}") from error
    return sum(kept.values()) * batch // 2


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
