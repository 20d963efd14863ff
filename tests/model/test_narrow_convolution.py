"""The gradients of narrow encoders, which a defect of oneDNN would spoil (`carp.model.narrow_convolution`)."""

import copy

import pytest
import torch
from torch import nn

from carp.config import EncoderSettings
from carp.model.encoder import build_encoder
from carp.model.narrow_convolution import SubsampledConvolution, replace_narrow_convolutions


@pytest.mark.parametrize("size", [16, 15])
@pytest.mark.parametrize("bias", [False, True])
def test_outputs_and_gradients_are_those_of_the_plain_convolution(size: int, bias: bool) -> None:
    torch.manual_seed(0)
    ours = nn.Conv2d(4, 8, 1, stride=2, bias=bias).to(memory_format=torch.channels_last)
    plain = copy.deepcopy(ours).double()  # for which PyTorch does not use oneDNN
    replace_narrow_convolutions(ours)
    assert isinstance(ours, SubsampledConvolution)
    images = torch.randn(16, 4, size, size).to(memory_format=torch.channels_last)
    upstream = torch.randn(16, 8, 8, 8)
    mine, exact = images.clone().requires_grad_(), images.double().requires_grad_()
    ours(mine).backward(upstream)
    plain(exact).backward(upstream.double())
    values = [ours(images), mine.grad, *(parameter.grad for parameter in ours.parameters())]
    expected = [plain(images.double()), exact.grad, *(parameter.grad for parameter in plain.parameters())]
    for value, wanted in zip(values, expected, strict=True):
        torch.testing.assert_close(value.double(), wanted, rtol=1e-4, atol=1e-4)  # sums of a thousand products


def test_only_strided_convolutions_of_few_channels_are_replaced() -> None:
    def encoder(channels: list[int]) -> nn.Module:
        options = {"channels": channels, "stem_type": "deep", "stem_width": 4}
        return build_encoder(EncoderSettings(encoder="resnet18", encoder_options=options, global_size=32))

    def replaced(network: nn.Module) -> list[str]:
        return [name for name, module in network.named_modules() if isinstance(module, SubsampledConvolution)]

    assert replaced(encoder([4, 4, 32, 32])) == ["layer2.0.downsample.0", "layer3.0.downsample.0"]
    assert not replaced(encoder([32, 32, 64, 64]))
