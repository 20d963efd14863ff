"""Memory, compute and traffic of the paper's setting on 1 to 64 GPUs, from formulas: the tables of docs/scaling.md.

    python -m benchmarks.scaling

`benchmarks.distributed` compares the formulas for memory and bytes of the head with measurements.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.distributed import computed_bytes
from carp.config import Config, resolve
from carp.config.recipe import read_settings
from carp.training.micro_batch import largest_micro_batch
from carp.training.planning.estimate import Estimate, estimate
from carp.training.planning.memory_check import ROOM

BATCH, DIMENSIONS, BLOCK, MICRO_BATCH = 4096, 256, 512, 64
GPUS = (1, 4, 16, 64)
PROTOTYPES = (65_536, 1_048_576, 16_777_216)
ENCODER_FLOP = 8.2e9  # of ResNet-50 for an image of 224 pixels: two for each of 4.1e9 multiplications


def need(gpus: int, prototypes: int, *, sharded: bool) -> Estimate:
    """What a process needs."""
    config = Config(
        batch_size=BATCH,
        micro_batch=MICRO_BATCH,
        num_prototypes=prototypes,
        block_size=BLOCK,
        precision="bf16",
        prototypes="sharded" if sharded else "replicated",
        prototype_shards=gpus if sharded else None,
    )
    with processes(gpus):
        return estimate(config, on_gpu=True)


@contextmanager
def processes(count: int) -> Iterator[None]:
    """Estimate for a process that is one of several."""
    before = os.environ.get("WORLD_SIZE")
    os.environ["WORLD_SIZE"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("WORLD_SIZE") if before is None else os.environ.update(WORLD_SIZE=before)


def print_micro_batches() -> None:
    """Print what `micro_batch: auto` chooses for the ImageNet recipes, and what a step then costs."""
    print("\n| recipe | GPUs | GB each | images per GPU | `micro_batch: auto` | GB needed | passes of the encoder |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for recipe in ("imagenet-100", "imagenet-100-multicrop"):
        for gpus in (1, 4, 8):
            for gigabytes in (40, 80):
                with processes(gpus):
                    given = {"reading": "printed", "micro_batch": None, "workers": 0}
                    config = resolve(read_settings(recipe, given), num_images=1_281_167)
                    size = largest_micro_batch(config, ROOM * gigabytes * 1e9, on_gpu=True)
                    need = estimate(config.model_copy(update={"micro_batch": size}), on_gpu=True).total_bytes
                share = BATCH // gpus
                passes = 4 if size == share else 5
                print(f"| {recipe} | {gpus} | {gigabytes} | {share:,} | {size:,} | {need / 1e9:.1f} | {passes} |")


def flop(gpus: int, prototypes: int) -> tuple[float, float]:
    """Of a step and process: encoder, head.

    Two views pass the student (forward and backward: 3, and once more where there are several micro-batches) and the
    teacher (1). In the head four embeddings of an image meet every prototype, and the student's two twice more for the
    gradients.
    """
    passes = 5 if BATCH / gpus > MICRO_BATCH else 4
    return BATCH / gpus * 2 * passes * ENCODER_FLOP, BATCH / gpus * 8 * 2 * prototypes * DIMENSIONS


def sent(gpus: int, prototypes: int, weights: int, *, sharded: bool) -> tuple[float, float]:
    """Bytes of a step and process: gradients of encoder and projector, head."""
    kind = "sharded" if sharded else "replicated"
    return 8 * weights * (gpus - 1) / gpus, computed_bytes(kind, prototypes, BATCH, gpus)


def main() -> None:
    """Print the table."""
    memory_columns = "GB per GPU | of which weights and optimiser state | of which head"
    print(f"| K | GPUs | prototypes | {memory_columns} | TFLOP encoder | TFLOP head |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for prototypes in PROTOTYPES:
        for gpus in GPUS:
            for sharded in (False, True) if gpus > 1 else (False,):
                found = need(gpus, prototypes, sharded=sharded)
                kind = "sharded" if sharded else "replicated"
                encoder, head = (x / 1e12 for x in flop(gpus, prototypes))
                sizes = (found.total_bytes, found.weights_bytes, found.head_bytes)
                memory = " | ".join(f"{x / 1e9:.1f}" for x in sizes)
                print(f"| {prototypes:,} | {gpus} | {kind} | {memory} | {encoder:.0f} | {head:.1f} |")
                weights = found.encoder_parameters + found.projector_parameters
                rows.append((prototypes, gpus, kind, *sent(gpus, prototypes, weights, sharded=sharded)))
    print(
        "\n| K | GPUs | prototypes | MB sent: encoder and projector | MB sent: head |\n| --- | --- | --- | --- | --- |"
    )
    for prototypes, gpus, kind, weights_sent, head_sent in rows:
        if gpus > 1:
            print(f"| {prototypes:,} | {gpus} | {kind} | {weights_sent / 1e6:.0f} | {head_sent / 1e6:,.0f} |")
    print_micro_batches()


if __name__ == "__main__":
    main()
