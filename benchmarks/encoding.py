"""Measures of `benchmarks.evaluation` with an encoder in them: the linear grid over images, and the extractor."""

import io
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.shared import CPU, Measures, take_turns
from benchmarks.views import Held, stored_photographs
from carp.evaluation.linear.over_crops import linear_on_images
from carp.features.extract import evaluation_crop, extract
from carp.images.decoding.decode import decode
from carp.images.loading.loader import normalise
from carp.images.sources.folder import FolderSource

NUM_CLASSES, LINEAR_SIZE, EMBED_SIZE, BATCH = 37, 96, 224, 64


def small_photographs(count: int) -> list[bytes]:
    """JPEGs of 128 × 96."""
    made = []
    for jpeg in stored_photographs(count)[0]:
        buffer = io.BytesIO()
        Image.open(io.BytesIO(jpeg)).resize((128, 96)).save(buffer, "JPEG", quality=90)
        made.append(buffer.getvalue())
    return made


def measure_linear_images(quick: bool, rounds: int) -> Measures:
    """The whole protocol over images: crops, encoder, both grids, test; without workers, whose start would count."""
    encoder = timm.create_model("resnet18", num_classes=0).eval()
    source = Held([*small_photographs(4 * NUM_CLASSES if quick else 10 * NUM_CLASSES)])
    labels = np.arange(len(source)) % NUM_CLASSES
    features = extract(encoder, source, size=LINEAR_SIZE, device=CPU).features
    train = partial(
        linear_on_images,
        features,
        labels,
        features,
        labels,
        encoder=encoder,
        source=source,
        size=LINEAR_SIZE,
        device=CPU,
        workers=0,
        epochs=1,
    )
    seconds = take_turns(
        {"one": partial(train, optimisers=("sgd",), lrs=(0.1,), weight_decays=(0.0,)), "forty": train}, rounds
    )
    return {"linear grid over images, 40 members / 1": (seconds["forty"] / seconds["one"], 1.5, False)}


@torch.inference_mode()
def forward(encoder: nn.Module, batches: list[Tensor]) -> None:
    """The encoder alone."""
    for images in batches:
        encoder(images)


def measure_embed(quick: bool, rounds: int) -> Measures:
    """From files to features, beside the encoder on the same images as tensors that are ready in the same layout."""
    encoder = timm.create_model("resnet18", num_classes=0).eval()
    jpegs, _ = stored_photographs(BATCH if quick else 4 * BATCH)
    crops = torch.from_numpy(np.stack([evaluation_crop(decode(jpeg, ""), EMBED_SIZE) for jpeg in jpegs]))
    ready = [normalise(part, CPU, channels_last=True) for part in torch.split(crops.permute(0, 3, 1, 2), BATCH)]
    with tempfile.TemporaryDirectory() as name:
        for number, jpeg in enumerate(jpegs):
            (Path(name) / f"{number:04d}.jpg").write_bytes(jpeg)
        source = FolderSource(Path(name))
        ours = partial(extract, encoder, source, size=EMBED_SIZE, device=CPU, batch_size=BATCH)
        seconds = take_turns({"forward": partial(forward, encoder, ready), "ours": ours}, rounds)
    return {"embed, images/s: ours / bare forward": (seconds["forward"] / seconds["ours"], 0.9, True)}
