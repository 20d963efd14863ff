"""LARS, and the choice among LARS, SGD and AdamW.

Matrices and filters are decayed (and adapted by LARS); vectors (biases, batch-norm gains) are neither.
"""

from collections.abc import Callable
from typing import Any, overload

import torch
from timm.models import group_parameters
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from carp.compute import distributed
from carp.config import OptimisationSettings
from carp.model.assigner import Assigner


class LARS(Optimizer):
    """SGD with momentum whose step for each tensor is proportional to the norm of that tensor (You et al., 2017).

    u = g + λp; u ← u · trust · ‖p‖ / ‖u‖; m ← μm + u; p ← p − lr · m. Groups with `adapt=False` skip the second
    step. All tensors of a group move in a few multi-tensor operations.
    """

    def __init__(
        self, params: Any, *, lr: float, momentum: float = 0.9, weight_decay: float = 0.0, trust: float = 0.001
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "adapt": True,
            "sharded": False,
        }
        super().__init__(params, defaults)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Move all parameters that have a gradient."""
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                self._move(params, [p.grad for p in params if p.grad is not None], group)
        return loss

    def _move(self, params: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        updates = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
        if group["adapt"]:
            p_norms = torch.stack(torch._foreach_norm(params))
            u_norms = torch.stack(torch._foreach_norm(updates))
            if group["sharded"]:  # each process holds part of the tensor
                squares = torch.stack([p_norms, u_norms]).square_()
                distributed.all_reduce_sum([squares])
                p_norms, u_norms = squares.sqrt_()
            moving = (p_norms > 0) & (u_norms > 0)
            ratios = torch.where(moving, group["trust"] * p_norms / u_norms, 1.0)
            torch._foreach_mul_(updates, list(ratios.unbind()))
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        buffers = [self.state[p]["momentum_buffer"] for p in params]
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, updates)
        torch._foreach_add_(params, buffers, alpha=-group["lr"])


def build_optimiser(module: nn.Module, config: OptimisationSettings) -> Optimizer:
    """Build the optimiser for all trainable parameters of a module."""
    prototypes = [p for part in module.modules() if isinstance(part, Assigner) for p in part.parameters()]
    known = {id(p) for p in prototypes}
    rest = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
    factors = layer_factors(module, config.layer_decay)
    groups: list[dict[str, Any]] = []
    for factor in sorted(set(factors.values()) | {1.0}, reverse=True):
        layer = [p for p in rest if factors.get(id(p), 1.0) == factor]
        groups += [
            {"params": [p for p in layer if p.ndim > 1], "decayed": True, "lr_factor": factor},
            {"params": [p for p in layer if p.ndim <= 1], "decayed": False, "lr_factor": factor, "adapt": False},
        ]
    groups.append(
        {
            "params": [p for p in prototypes if p.requires_grad],
            "decayed": True,
            "lr_factor": config.prototype_lr,
            "sharded": config.shards > 1,
        }
    )
    lr = config.base_lr
    if config.optimiser == "adamw":
        return AdamW(groups, lr=lr, weight_decay=0.0, foreach=True)
    if config.optimiser == "sgd":
        return SGD(groups, lr=lr, momentum=config.momentum, foreach=True)
    return LARS(groups, lr=lr, momentum=config.momentum, trust=config.trust)


def layer_factors(module: nn.Module, decay: float) -> dict[int, float]:
    """Return learning rates relative to the last layer of a timm encoder, by parameter id; empty without decay.

    timm numbers the layers of its networks. Parts outside the encoder, such as the projector, have no factor.
    """
    if decay == 1.0:
        return {}
    encoders: list[Any] = [part for part in module.modules() if hasattr(part, "group_matcher")]
    factors = dict[int, float]()
    for encoder in encoders:
        layers = group_parameters(encoder, encoder.group_matcher(coarse=False), reverse=True)
        last = max(layers.values())
        named = dict(encoder.named_parameters())
        factors |= {id(named[name]): decay ** (last - layer) for name, layer in layers.items()}
    return factors


def set_hyperparameters(optimiser: Optimizer, *, lr: float, weight_decay: float) -> None:
    """Set the learning rate of all groups, times their `lr_factor`, and the weight decay of the decayed groups."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["lr_factor"]
        group["weight_decay"] = weight_decay if group["decayed"] else 0.0


def optimiser_tensors(optimiser: Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state as named tensors: `<parameter>/<slot>`."""
    return {
        f"{name}/{slot}": value
        for name, parameter in module.named_parameters()
        for slot, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimiser_tensors(optimiser: Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Restore what `optimiser_tensors` returned, in each parameter's own memory layout."""
    parameters = dict(module.named_parameters())
    for key, value in tensors.items():
        name, slot = key.rsplit("/", 1)
        parameter = parameters[name]
        same = value.shape == parameter.shape
        target = torch.empty_like(parameter, requires_grad=False) if same else torch.empty_like(value)
        optimiser.state[parameter][slot] = target.copy_(value)
