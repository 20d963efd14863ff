"""The network of CIFAR's ResNets; test_real_files.py compares published weights if they are present."""

import torch
from torch import nn

from carp.encoders.foreign.cifar_resnet import CifarResNet


def test_shortcuts_take_every_second_pixel_and_put_new_channels_around_the_old() -> None:
    torch.manual_seed(0)
    network = CifarResNet((2, 1, 1), (16, 32, 64)).eval()
    for name, module in network.named_modules():
        if name.endswith("bn2"):  # every block is its shortcut
            assert isinstance(module, nn.BatchNorm2d)
            nn.init.zeros_(module.weight)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        stem = torch.relu(network.bn1(network.conv1(images)))
        features = network(images)
    assert features.shape == (2, network.num_features) == (2, 64)
    assert not features[:, :24].any()
    assert not features[:, 40:].any()
    torch.testing.assert_close(features[:, 24:40], stem[:, :, ::4, ::4].mean(dim=(2, 3)))


def test_the_residual_changes_the_features() -> None:
    torch.manual_seed(0)
    network = CifarResNet((1, 1, 1), (16, 32, 64)).eval()
    assert network(torch.randn(2, 3, 32, 32))[:, :24].any()
