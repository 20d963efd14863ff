"""How much faster is a training step with depthwise convolutions computed by CARP than by torch alone?

    python -m benchmarks.depthwise [--precision bf16] [--threads 1] [--rounds 4]

Forward and backward pass of 64 images, in turn with and without `speed_up_depthwise`; the best of several rounds.
"""

import argparse
import json
import time

import timm
import torch
from torch import nn

from carp.model.convolutions.depthwise import speed_up_depthwise

CASES = (
    ("tf_efficientnet_lite0", 48),
    ("tf_efficientnet_lite0", 64),
    ("tf_efficientnet_lite0", 96),
    ("mobilenetv3_large_100", 64),
    ("convnext_atto", 64),
)
IMAGES = 64


def seconds(encoder: nn.Module, images: torch.Tensor, precision: str) -> float:
    """Time of one forward and backward pass."""
    start = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        features = encoder(images)
    features.float().sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """Print one line per encoder and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16 if the processor has it")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for name, size in CASES:
        pair = [timm.create_model(name, num_classes=0).to(memory_format=torch.channels_last) for _ in range(2)]
        speed_up_depthwise(pair[1])
        images = torch.randn(IMAGES, 3, size, size).contiguous(memory_format=torch.channels_last)
        rounds = [
            [seconds(encoder, images, arguments.precision) for encoder in pair] for _ in range(1 + arguments.rounds)
        ][1:]
        torchs, own = (min(column) for column in zip(*rounds, strict=True))
        line = {"encoder": name, "size": size, "torch, s": torchs, "carp, s": own, "times as fast": torchs / own}
        print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()}))


if __name__ == "__main__":
    main()
