"""Small networks, and their weights as each project saves them."""

import math
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn
from torch.nn import functional as F

Tensors = dict[str, Tensor]


def randomised(module: nn.Module, *, seed: int = 0) -> nn.Module:
    """Every parameter and statistic differs from every other; batch norm has counted batches."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if name.endswith("num_batches_tracked"):
                tensor.fill_(7)
            elif name.endswith("running_var") or (tensor.ndim == 1 and name.endswith("weight")):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
            else:
                scale = 0.3 if tensor.ndim == 1 else math.sqrt(2 / tensor[0].numel())
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * scale)
    return module.eval()


def narrow(*, bottleneck: bool = True, seed: int = 0) -> nn.Module:
    """A ResNet with torchvision's names that is small enough to be written many times."""
    block = Bottleneck if bottleneck else BasicBlock
    return randomised(ResNet(block, (2, 1, 1, 2), channels=(4, 8, 8, 12), num_classes=0), seed=seed)


def pictures(size: int = 64) -> Tensor:
    """Noise, [3, 3, size, size]; an even side shows where padding is not alike on both sides."""
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(5))


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return OrderedDict((prefix + name, tensor) for name, tensor in tensors.items())


def heads(**shapes: tuple[int, ...]) -> Tensors:
    """Tensors of a head; `__` stands for a dot."""
    return {name.replace("__", "."): torch.randn(shape) for name, shape in shapes.items()}


def sequential(tensors: Tensors) -> Tensors:
    """The names that `nn.Sequential(*list(resnet.children())[:-1])` gives."""
    places = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    return {".".join([places[name.split(".")[0]], *name.split(".")[1:]]): t for name, t in tensors.items()}


def in_tensorflow_order(tensors: Tensors) -> Tensors:
    """Filters as converters leave them: TensorFlow's memory under PyTorch's axes."""
    order = {4: ((2, 3, 1, 0), (3, 2, 0, 1)), 2: ((1, 0), (1, 0))}
    return {
        name: t.permute(order[t.ndim][0]).contiguous().permute(order[t.ndim][1]) if t.ndim in order else t
        for name, t in tensors.items()
    }


def with_statistics_last(tensors: Tensors) -> Tensors:
    """Haiku's order, and no counters."""
    weights = {n: t for n, t in tensors.items() if n.endswith((".weight", ".bias"))}
    return weights | {n: t for n, t in tensors.items() if "running" in n}


Saved = dict[str, Any]
_WRITERS: dict[str, Callable[["Kit"], list[Saved]]] = {}


def released(method: str, tensors: Tensors) -> list[Saved]:
    """The files of a method that hold this encoder, in every layout that its project writes."""
    return _WRITERS[method](Kit(method, tensors))


class Kit:
    """An encoder's tensors, and what writers need around them."""

    def __init__(self, method: str, tensors: Tensors) -> None:
        self.method, self.tensors = method, dict(tensors)
        self.other = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}  # a branch not to be taken
        self.width = tensors["layer4.1.conv3.weight"].shape[0]
        self.fc = heads(fc__weight=(10, self.width), fc__bias=(10,))

    def under(self, prefix: str) -> Tensors:
        return prefixed(self.tensors, prefix)

    def head(self, *names: str) -> Tensors:
        return {name: torch.randn(8, self.width) for name in names}


def _saves(*methods: str) -> Callable[[Callable[[Kit], list[Saved]]], Callable[[Kit], list[Saved]]]:
    def register(writer: Callable[[Kit], list[Saved]]) -> Callable[[Kit], list[Saved]]:
        _WRITERS.update(dict.fromkeys(methods, writer))
        return writer

    return register


def _training(**entries: Any) -> Saved:
    """What training scripts keep beside the weights."""
    args = Namespace(data=Path("/data"), lr=0.1, best=np.float64(0.5), device=torch.device("cpu"))
    return {"epoch": 100, "args": args, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, **entries}


@_saves("torchvision")
def _torchvision(kit: Kit) -> list[Saved]:
    state = {**kit.tensors, **kit.fc}
    return [state, _training(arch="resnet50", state_dict=prefixed(state, "module."))]


@_saves("timm")
def _timm(kit: Kit) -> list[Saved]:
    good, bad = {**kit.tensors, **kit.fc}, {**kit.other, **kit.fc}
    return [_training(arch="resnet50", version=2, state_dict=bad, state_dict_ema=good)]


@_saves("resnet")
def _resnet(kit: Kit) -> list[Saved]:
    return [kit.tensors, {"state_dict": kit.under("module.")}, {"model": kit.tensors}]


@_saves("dino", "resnet-v1")
def _bare(kit: Kit) -> list[Saved]:
    return [kit.tensors]


@_saves("carp", "carl", "dino-full")
def _student_and_teacher(kit: Kit) -> list[Saved]:
    head = kit.head("module.head.mlp.0.weight", "module.head.last_layer.weight_v")
    loss = {"dino_loss": {"center": torch.zeros(1, 16)}} if kit.method == "dino-full" else {}
    student = {**prefixed(kit.other, "module.backbone."), **head}
    teacher = {**kit.under("module.backbone."), **head}
    return [_training(student=student, teacher=teacher, fp16_scaler={"scale": 2.0}, **loss)]


@_saves("obow")
def _obow(kit: Kit) -> list[Saved]:
    parts = {"conv1": "0.Conv", "bn1": "0.bn", "layer1": "1", "layer2": "2", "layer3": "3", "layer4": "4"}
    blocks = {f"_feature_blocks.{parts[n.split('.')[0]]}.{n.split('.', 1)[1]}": t for n, t in kit.tensors.items()}
    return [{"network": {**kit.tensors, **kit.fc}}, {"epoch": 200, "network": blocks, "meters": None}]


@_saves("swav", "deepcluster-v2", "sela-v2")
def _swav(kit: Kit) -> list[Saved]:
    names = ["prototypes"] if kit.method == "swav" else ["prototypes.prototypes0", "prototypes.prototypes1"]
    head = kit.head("module.projection_head.0.weight", *(f"module.{name}.weight" for name in names))
    state = {**kit.under("module."), **head}
    return [state, _training(state_dict=state)]


@_saves("infomin")
def _infomin(kit: Kit) -> list[Saved]:
    model = {**kit.under("module.encoder."), **kit.head("module.head.0.weight", "module.head.2.weight")}
    average = {**prefixed(kit.other, "encoder."), **kit.head("head.0.weight")}
    return [_training(model=model, contrast={"memory": torch.zeros(4, 4)}, model_ema=average)]


@_saves("triplet")
def _triplet(kit: Kit) -> list[Saved]:
    full = {**kit.under("online_net.0."), **prefixed(kit.other, "target_net.0."), **kit.under("backbone.")}
    full |= kit.head("online_net.1.fc0.weight", "head.predictor.fc0.weight")
    return [{"state_dict": kit.tensors, "author": "OpenSelfSup"}, {"meta": {"epoch": 980}, "state_dict": full}]


@_saves("barlow-twins", "vicreg")
def _twins(kit: Kit) -> list[Saved]:
    own = "module.bn.running_mean" if kit.method == "barlow-twins" else "module.projector.0.bias"
    model = {**kit.under("module.backbone."), **kit.head("module.projector.0.weight", own)}
    return [kit.tensors, {"epoch": 1000, "model": model, "optimizer": {}}]


@_saves("moco-v2", "pcl-v2")
def _moco(kit: Kit) -> list[Saved]:
    head = kit.head("module.encoder_q.fc.0.weight", "module.encoder_q.fc.2.weight")
    queue = torch.zeros(2, 65_536 if kit.method == "moco-v2" else 16_384)
    state = {**kit.under("module.encoder_q."), **head, **prefixed(kit.other, "module.encoder_k.")}
    state |= {"module.queue": queue, "module.queue_ptr": torch.zeros(1)}
    return [_training(arch="resnet50", state_dict=state)]


@_saves("moco-v3")
def _moco_v3(kit: Kit) -> list[Saved]:
    head = kit.head("module.base_encoder.fc.0.weight", "module.predictor.0.weight")
    momentum = prefixed(kit.other, "module.momentum_encoder.")
    return [_training(state_dict={**kit.under("module.base_encoder."), **head, **momentum}, scaler={})]


@_saves("byol")
def _byol(kit: Kit) -> list[Saved]:
    return [in_tensorflow_order(with_statistics_last({**kit.tensors, **kit.fc}))]


@_saves("byol-pytorch")
def _byol_pytorch(kit: Kit) -> list[Saved]:
    online = {**prefixed(sequential(kit.tensors), "encoder."), **kit.head("projetion.net.0.weight")}
    target = prefixed(sequential(kit.other), "encoder.")
    return [{"online_network_state_dict": online, "target_network_state_dict": target}]


@_saves("mira")
def _mira(kit: Kit) -> list[Saved]:
    state = {**prefixed(kit.other, "module.model.encoder."), **kit.under("module.ema_model.encoder.")}
    state |= kit.head("module.model.projector.0.weight", "module.ema_model.head.weight_g")
    return [_training(state_dict=state)]


@_saves("coke")
def _coke(kit: Kit) -> list[Saved]:
    head = kit.head("module.encoder.fc.0.weight", "module.predictor.0.weight", "module.pre_center_0")
    labels = {"module.assign_labels": torch.zeros(3, 9, dtype=torch.long)}
    return [_training(state_dict={**kit.under("module.encoder."), **head, **labels})]


@_saves("simclr")
def _simclr(kit: Kit) -> list[Saved]:
    zeros = {n: torch.zeros_like(t) if n.endswith("tracked") else t for n, t in kit.tensors.items()}
    return [{"state_dict": in_tensorflow_order({**zeros, **kit.fc})}]


@_saves("vissl")
def _vissl(kit: Kit) -> list[Saved]:
    model = {"trunk": kit.under("_feature_blocks."), "heads": kit.head("clf.weight")}
    return [{"phase_idx": 1, "classy_state_dict": {"base_model": {"model": model}, "losses": {}}}]


@_saves("lightning")
def _lightning(kit: Kit) -> list[Saved]:
    head = kit.head("projector.0.weight", "classifier.weight")
    encoders = kit.under("backbone."), kit.under("encoder."), prefixed(sequential(kit.tensors), "backbone.")
    return [{"state_dict": {**encoder, **head}, "pytorch-lightning_version": "2.0"} for encoder in encoders]


class TensorFlowResNet(nn.Module):
    """A network with torchvision's names that pads as TensorFlow's SAME does, written out."""

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.source = source

    @staticmethod
    def _pad(x: Tensor, kernel: int, stride: int) -> Tensor:
        total = [max((math.ceil(n / stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:]]
        return F.pad(x, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))

    def _conv(self, x: Tensor, conv: Any) -> Tensor:
        return F.conv2d(self._pad(x, conv.kernel_size[0], conv.stride[0]), conv.weight, stride=conv.stride)

    def forward(self, x: Tensor) -> Tensor:
        net: Any = self.source
        x = F.relu(net.bn1(self._conv(x, net.conv1)))
        x = F.max_pool2d(self._pad(x, 3, 2), 3, 2)
        for block in (b for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for b in stage):
            y = F.relu(block.bn1(self._conv(x, block.conv1)))
            y = F.relu(block.bn2(self._conv(y, block.conv2)))
            y = block.bn3(self._conv(y, block.conv3))
            short = x if block.downsample is None else block.downsample[1](self._conv(x, block.downsample[0]))
            x = F.relu(y + short)
        return x.mean(dim=(2, 3))


def _norm(channels: int, *, relu: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU() if relu else nn.Identity())


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels, kernel, stride=stride, padding=kernel // 2, bias=False)


class _Projection(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.shortcut, self.bn = _conv(channels_in, channels, 1, stride), _norm(channels, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.shortcut(x))


class _SimBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, *, first: bool) -> None:
        super().__init__()
        self.projection = _Projection(channels_in, 4 * channels, stride) if first else nn.Identity()
        parts = [
            _conv(channels_in, channels, 1),
            _norm(channels),
            _conv(channels, channels, 3, stride),
            _norm(channels),
        ]
        self.net = nn.Sequential(*parts, _conv(channels, 4 * channels, 1), _norm(4 * channels, relu=False))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.projection(x) + self.net(x))


class _SimStage(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_SimBlock(channels_in, channels, stride, first=True)])
        self.blocks.extend(_SimBlock(4 * channels, channels, 1, first=False) for _ in range(depth - 1))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class SimClr2ResNet(nn.Module):
    """The network of the SimCLR-v2 converter without selective kernels: the same sums under other names."""

    def __init__(self) -> None:
        super().__init__()
        stem = nn.Sequential(_conv(3, 8, 7, 2), _norm(8), nn.MaxPool2d(3, 2, 1))
        stages = [_SimStage(8, 4, 1, 2), _SimStage(16, 8, 2, 1), _SimStage(32, 8, 2, 1), _SimStage(32, 12, 2, 2)]
        self.net, self.fc = nn.Sequential(stem, *stages), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).mean(dim=(2, 3))
