"""A ResNet under detectron2's names, written from its documentation, to load what the exporter gives it."""

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Conv(nn.Conv2d):
    """A convolution that owns its norm, as detectron2's does."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class Block(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = Conv(channels_in, channels, 3, stride), Conv(channels, channels, 3)
        self.shortcut = Conv(channels_in, channels, 1, stride) if channels_in != channels else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.conv1(x)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(OrderedDict(conv1=Conv(3, 64, 7, 2)))
        widths = (64, 64, 128, 256, 512)
        for stage in range(1, 5):
            before, width = widths[stage - 1], widths[stage]
            blocks = (Block(before, width, 1 if stage == 1 else 2), Block(width, width, 1))
            self.add_module(f"res{stage + 1}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        for stage in range(2, 6):
            x = self.get_submodule(f"res{stage}")(x)
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
