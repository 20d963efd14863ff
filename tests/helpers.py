"""What several tests share: a run so small that a step takes milliseconds, and how to compare two runs."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image

from carp.runs import checkpoint

# A whole recipe for 64 images of 32 pixels: 4 steps an epoch.
TINY: dict[str, Any] = {
    "epochs": 5,
    "batch_size": 16,
    "seed": 3,
    "global_size": 32,
    "blur": [0, 0, 0],
    "encoder": "resnet18",
    "encoder_options": {"layers": [1, 1, 1, 1], "channels": [8, 8, 16, 16], "stem_type": "deep", "stem_width": 4},
    "stem_stride": 2,
    "projector_hidden": 32,
    "embedding": 16,
    "num_prototypes": 64,
    "block_size": 8,
    "device": "cpu",
    "log_steps": 1,
    "health_steps": 7,
    "checkpoint_steps": 5,
    "report": False,  # a page takes longer than a run
}


def tiny_images(count: int = 64, size: int = 32, *, seed: int = 0) -> NDArray[np.uint8]:
    """Coloured noise, [count, size, size, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def write_images(folder: Path, images: NDArray[np.uint8], *, classes: int = 0, suffix: str = ".png") -> Path:
    """One file an image: flat, or spread over `classes` sub-folders."""
    for i, pixels in enumerate(images):
        parent = folder / f"class-{i % classes}" if classes else folder
        parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(parent / f"{i:03d}{suffix}")
    return folder


def write_recipe(path: Path, **changes: Any) -> Path:
    """TINY as a recipe file."""
    path.write_text(yaml.safe_dump({**TINY, **changes}))
    return path


def steps_of(run: Path) -> list[int]:
    """The steps of the checkpoints in a run folder, oldest first."""
    return [
        step for p in checkpoint.list_checkpoints(run / "checkpoints") if (step := checkpoint.step_of(p)) is not None
    ]


def final_tensors(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint, which must be whole."""
    return checkpoint.load(checkpoint.list_checkpoints(run / "checkpoints")[-1]).tensors


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor, so that NaN equals NaN and -0 differs from 0."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Same names, types, shapes and bits."""
    assert ours.keys() == theirs.keys()
    assert ours, "nothing was compared"
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert bits(tensor) == bits(theirs[name]), name


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Bit-identical final weights and optimiser state, and the same bytes of metrics."""
    assert steps_of(ours)[-1] == steps_of(theirs)[-1]
    assert_same_bits(final_tensors(ours), final_tensors(theirs))
    assert (ours / "metrics.jsonl").read_bytes() == (theirs / "metrics.jsonl").read_bytes()
