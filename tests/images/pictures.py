"""Pictures for the tests of views, and how one operation is switched on alone."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from carp.images.views.view_parameters import ViewKind, draw_view

SAMPLES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")

# Scale 1 on a square image leaves the whole image; nothing else is on.
NOTHING = ViewKind(size=32, scale=(1.0, 1.0), flip=0, jitter=0, strength=(0, 0, 0, 0), grey=0, blur=0, solarise=0)


def photographs(count=12, height=32, width=32, seed=0):
    """Smooth shading, an edge, texture and saturated colours, unlike noise: [count, height, width, 3] bytes."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    images = []
    for _ in range(count):
        phase, speed = rng.uniform(0, 6, (2, 3, 1, 1))
        waves = 127 + 140 * np.sin(phase + 2 * speed * x + speed[::-1] * y)
        waves += rng.normal(0, 15, waves.shape)
        waves[:, (x + y) > rng.uniform(0.3, 1.2)] *= rng.uniform(0, 1)
        images.append(waves.transpose(1, 2, 0))
    return np.clip(np.stack(images), 0, 255).astype(np.uint8)


def soft_photographs(*shape):
    """Far enough from black and white that no bicubic overshoot is clipped, so that Pillow only rounds."""
    return (photographs(*shape) * 0.45 + 70).astype(np.uint8)


def as_floats(images):
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def real_photographs():
    """Photographs that come with scikit-image; none when it is not installed."""
    try:
        folder = Path(str(files("skimage").joinpath("data")))
    except ImportError:
        return []
    return [np.array(Image.open(folder / name).convert("RGB")) for name in SAMPLES if (folder / name).exists()]


def drawn(images, kind, **where):
    """What is drawn for a batch of images, view 0."""
    count, height, width, _ = images.shape
    sizes = {"heights": np.full(count, height), "widths": np.full(count, width)}
    return draw_view(kind, indices=np.arange(count), view=0, **{"seed": 0, "epoch": 0, **where}, **sizes)
