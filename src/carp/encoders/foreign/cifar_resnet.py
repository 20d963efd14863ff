"""The ResNets of the CIFAR experiments in the original ResNet paper: three stages, shortcuts without parameters."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride, self.new = stride, channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        # Every second pixel, and zeros for the new channels: half of them before the old ones, half after
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(y + F.pad(shortcut, (0, 0, 0, 0, self.new // 2, self.new - self.new // 2)))


class CifarResNet(nn.Module):
    """Maps images [B, 3, H, W] to pooled features [B, F]."""

    def __init__(self, depths: tuple[int, ...], channels: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels[0])
        before = (channels[0], *channels[:-1])
        for i, (depth, width, width_in) in enumerate(zip(depths, channels, before, strict=True)):
            first = _Block(width_in, width, stride=1 if i == 0 else 2)
            self.add_module(f"layer{i + 1}", nn.Sequential(first, *(_Block(width, width, 1) for _ in range(depth - 1))))
        self.stages, self.num_features = len(depths), channels[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Return the pooled features."""
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(self.stages):
            x = cast(Tensor, self.get_submodule(f"layer{i + 1}")(x))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
