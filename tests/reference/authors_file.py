"""A checkpoint as the authors' published script saves it, restated in plain PyTorch and independent of `carp`.

Student and teacher are a ResNet with torchvision's names and a head: three linear layers, the first two with batch norm
and GELU, then prototypes with weight norm of length 1. DDP adds `module.` to every name.
"""

import warnings
from argparse import Namespace

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, features, prototypes, *, hidden=24, embedding=16, batch_norm=True):
        super().__init__()
        layers = []
        for width in (features, hidden):
            layers += [nn.Linear(width, hidden), *([nn.BatchNorm1d(hidden)] if batch_norm else []), nn.GELU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden, embedding))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script uses the old weight norm
            self.last_layer = nn.utils.weight_norm(nn.Linear(embedding, prototypes, bias=False))
        self.last_layer.weight_g.data.fill_(1)
        self.last_layer.weight_g.requires_grad = False

    def forward(self, features):
        return self.last_layer(self.mlp(features))


class Network(nn.Module):
    def __init__(self, backbone, features, prototypes, **head):
        super().__init__()
        backbone.fc = nn.Identity()
        self.backbone, self.head = backbone, Head(features, prototypes, **head)

    def forward(self, images):
        return self.head(self.backbone(images))


class Lars(torch.optim.Optimizer):
    """Momentum of LARS in the slot `mu`; two groups: with and without weight decay."""

    def __init__(self, network):
        trained = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        plain = [p for name, p in trained if name.endswith(".bias") or p.ndim == 1]
        decayed = [p for name, p in trained if not (name.endswith(".bias") or p.ndim == 1)]
        defaults = {"lr": 0.0, "weight_decay": 0.0, "momentum": 0.9, "eta": 0.001, "weight_decay_filter": None}
        super().__init__([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], defaults)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                update = p.grad
                if p.ndim != 1:
                    update = update + group["weight_decay"] * p
                    size, length = p.norm(), update.norm()
                    if size > 0 and length > 0:
                        update = update * (group["eta"] * size / length)
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                state["mu"].mul_(group["momentum"]).add_(update)
                p.sub_(group["lr"] * state["mu"])


ARGUMENTS = {
    "arch": "resnet18",
    "out_dim": 64,
    "epochs": 8,
    "batch_size_per_gpu": 4,
    "world_size": 2,
    "gradient_accumulation_steps": 1,
    "lr": 0.45,
    "min_lr": 0.0048,
    "warmup_epochs": 0,
    "weight_decay": 1e-6,
    "weight_decay_end": 1e-6,
    "momentum_teacher": 0.99,
    "partition_size": 16,
    "local_crops_number": 0,
    "global_crops_scale": (0.2, 1.0),
    "local_crops_scale": [0.05, 0.2],
    "seed": 5,
    "data_path": "/data",
    "use_fp16": True,
}


def trained(make, *, images, steps=2):
    """Student, teacher and optimiser after a few steps; the teacher differs from the student."""
    torch.manual_seed(1)
    student, teacher = make(), make()
    teacher.load_state_dict(student.state_dict())
    optimiser = Lars(student)
    for _ in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 0.5
        optimiser.zero_grad()
        (student(images).softmax(dim=1).square().sum() * 10).backward()
        optimiser.step()
        with torch.no_grad():
            teacher(images)  # its batch norm has its own statistics
            for q, k in zip(student.parameters(), teacher.parameters(), strict=True):
                k.mul_(0.6).add_(0.4 * q)
    return student, teacher, optimiser


def saved(student, teacher, optimiser, *, epoch=3, prefix="module.", **arguments):
    """The dictionary that the script gives to `torch.save`."""
    states = [{prefix + name: t for name, t in network.state_dict().items()} for network in (student, teacher)]
    return {
        "student": states[0],
        "teacher": states[1],
        "optimizer": optimiser.state_dict(),
        "epoch": epoch,
        "args": Namespace(**{**ARGUMENTS, **arguments}),
        "fp16_scaler": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 7},
    }
