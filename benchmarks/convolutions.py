"""How much faster is a training step with CARP's convolutions for CPUs than with those of torch alone?

    python -m benchmarks.convolutions [--precision bf16] [--threads 1] [--rounds 4]

Forward and backward pass of 64 images, in turn with and without `prepare_for_cpu`; the best of several rounds.
"""

import argparse
import json
import time

import torch
from torch import nn

from benchmarks.shared import CPU
from carp.compute.device import check_precision
from carp.config import resolve
from carp.config.recipe import read_recipe
from carp.model.convolutions.for_cpu import prepare_for_cpu
from carp.model.encoder import build_encoder

RECIPE = "cifar10-cpu"  # for its encoder
CASES = (
    ("tf_efficientnet_lite0", 48),
    ("tf_efficientnet_lite0", 64),
    ("tf_efficientnet_lite0", 96),
    ("mobilenetv3_large_100", 64),
    ("convnext_atto", 64),
    ("resnet18", 64),
    ("resnet50", 64),
    (RECIPE, 32),
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
    check_precision(arguments.precision, CPU)
    torch.set_num_threads(arguments.threads)
    for name, size in CASES:
        settings = read_recipe(RECIPE) if name == RECIPE else {"encoder": name, "global_size": size, "stem": "encoder"}
        config = resolve(settings, num_images=IMAGES)
        pair = [build_encoder(config).to(memory_format=torch.channels_last) for _ in range(2)]
        prepare_for_cpu(pair[1])
        images = torch.randn(IMAGES, 3, size, size).contiguous(memory_format=torch.channels_last)
        rounds = [
            [seconds(encoder, images, arguments.precision) for encoder in pair] for _ in range(1 + arguments.rounds)
        ][1:]
        torchs, own = (min(column) for column in zip(*rounds, strict=True))
        line = {"encoder": name, "size": size, "torch, s": torchs, "carp, s": own, "times as fast": torchs / own}
        print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()}))


if __name__ == "__main__":
    main()
