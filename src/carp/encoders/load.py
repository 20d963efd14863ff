"""Load any encoder for use: `carp.load(run).embed(images)`."""

import warnings
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from carp.compute.device import choose_device
from carp.encoders.foreign import BY_NAME, foreign_encoder
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.layers import NamedLayer
from carp.encoders.model_argument import is_weights, split_weights
from carp.encoders.read_export import CarpExport, build_own, read_own
from carp.errors import CarpWarning, CheckpointError, ConfigError, DataError, nearest
from carp.features.extract import RAW_PIXELS_SIDE
from carp.features.feature_options import ENCODER, PROJECTOR, FeatureOptions
from carp.features.store import Store
from carp.images.views.centre_crop import TRANSFORM
from carp.images.views.interpolation import Interpolation
from carp.model.branch import Branch
from carp.random import Purpose, seed_of
from carp.runs.run_folder import Run, open_run

BranchName = Literal["teacher", "student", "untrained", "raw pixels"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)


def load(
    model: str | Path,
    branch: str | Path = "teacher",
    *,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    device: str = "auto",
) -> Encoder:
    """Load the encoder of a run, or released weights of another method.

    Args:
        model: A run folder, a weights file (also one that `carp export` wrote as safetensors or for torchvision), or
            `METHOD:FILE` (`carp weights` lists the methods).
        branch: The branch of a run: `teacher` or `student`; as baselines, `untrained` (the encoder that the run started
            from) and `raw pixels` (no encoder, images resized to at most 32 pixels). Weights have no branches:
            `load("swav", FILE)` is the same as `load("swav:FILE")`.
        layer: The output to use: `encoder` (pooled), `projector` (the embedding, for runs only), or the name of a layer
            of the encoder, such as `layer3`, averaged over positions.
        size: Side of the images in pixels. By default the size used for training.
        resize: Length of the shorter side before the centre crop. By default 8/7 of `size`, or `size` up to 64.
        interpolation: How images are resized: `bicubic` (the default) or `bilinear`.
        device: Where to run: `auto`, `cpu`, `cuda` or `mps`.

    Returns:
        The encoder in evaluation mode; `Encoder.embed` turns images into features.
    """
    options = FeatureOptions(layer=layer, size=size, resize=resize, interpolation=interpolation, device=device)
    return load_encoder(model, branch, options)


def load_encoder(model: str | Path, branch: str | Path, options: FeatureOptions) -> Encoder:
    """Load an encoder like `load`, with the options of a command."""
    if model in BY_NAME and branch not in BRANCHES:
        return _load_weights(f"{model}:{branch}", options)
    if is_weights(model):
        return _load_weights(str(model), options)
    if branch not in BRANCHES:
        hint = nearest(str(branch), BRANCHES)
        raise CheckpointError(f"branch must be {', '.join(BRANCHES)}, received '{branch}'.{hint}")
    run = open_run(model)
    layer, size, resize = options.layer, options.size or run.config.global_size, options.resize
    module: nn.Module
    if branch == "raw pixels":
        module, layer, size, resize = nn.Flatten(), ENCODER, min(size, RAW_PIXELS_SIDE), None
    else:
        trained = _branch(run, str(branch))
        module = trained if layer == PROJECTOR else _output(trained.encoder, layer)
    return Encoder(
        module,
        size=size,
        device=choose_device(options.device),
        name=run.folder.resolve().name,
        branch=str(branch),
        layer=layer,
        epochs=run.config.epochs if branch in ("teacher", "student") else None,
        resize=resize,
        interpolation=options.interpolation,
        path=str(run.folder.resolve()),
        max_pixels=run.config.max_image_pixels,
    )


def encoder_of(store: Store, model: str | Path | None = None, *, device: str = "auto") -> Encoder:
    """Load the encoder that extracted the features of a store, verified by the hash of its weights.

    Args:
        store: The features.
        model: Where the encoder is, if it was moved since.
        device: Where to run it.
    """
    about, transform = store.origin.model, store.origin.transform
    if "size" not in transform:  # features of a ranked protocol: whole images, at several scales
        raise DataError(
            f"the images in {store.folder} were not resized to one size, so new images cannot be compared with them. "
            "Extract features with `carp embed`, then run `carp index` and `carp search` on those."
        )
    path = model or about.get("path")
    if not path:
        raise ConfigError(f"{store.folder} does not record where its model {about['name']} is. Give it with --model.")
    if not model and not split_weights(path)[1].exists():
        raise CheckpointError(f"the model {about['name']} is no longer at {path}. Give its new path with --model.")
    options = FeatureOptions(
        layer=about["layer"],
        size=transform["size"],
        resize=transform["resize"],
        interpolation=transform.get("interpolation"),
        device=device,
    )
    encoder = load_encoder(path, about["branch"] or "teacher", options)
    if encoder.hash != about["hash"]:
        raise CheckpointError(
            f"{path} is not the model that extracted {store.folder}: its weights are {encoder.hash[:12]}, not "
            f"{about['hash'][:12]}. Give {about['name']} with --model, or embed again."
        )
    if transform.get("transform", 1) != TRANSFORM:
        warnings.warn(
            f"the features in {store.folder} were extracted with another version of the image transform, so "
            "similarities to new images are slightly off. Embed and index again to remove the difference.",
            CarpWarning,
            stacklevel=3,
        )
    return encoder


def _load_weights(model: str, options: FeatureOptions) -> Encoder:
    method, file = split_weights(model)
    if options.layer == PROJECTOR:
        raise CheckpointError(f"{file} is loaded without its projector. Use --layer encoder, or the name of a layer.")
    own = None if method else read_own(file.expanduser())
    if own is not None and own.method is None:
        return _load_export(own, options)
    module, weights = foreign_encoder(file.expanduser(), method or (own.method if own else None))
    return Encoder(
        _output(module, options.layer),
        size=options.size or weights.size,
        device=choose_device(options.device),
        name=file.name.partition(".")[0],
        layer=options.layer,
        resize=options.resize,
        interpolation=options.interpolation,
        path=f"{weights.method.name}:{file.expanduser().resolve()}",
    )


def _load_export(own: CarpExport, options: FeatureOptions) -> Encoder:
    """Load the encoder of a run from an export; it has the name of the run."""
    about, origin = own.about, own.about.origin
    return Encoder(
        _output(build_own(own), options.layer),
        size=options.size or about.size,
        device=choose_device(options.device),
        name=str(origin.get("run", own.path.name.partition(".")[0])),
        branch=str(origin.get("branch", "")),
        layer=options.layer,
        epochs=origin.get("epochs"),
        resize=about.resize if options.size is None and options.resize is None else options.resize,
        interpolation=options.interpolation,
        path=str(own.path.resolve()),
    )


def _branch(run: Run, name: str) -> Branch:
    torch.manual_seed(seed_of(run.config.seed, Purpose.WEIGHTS))  # as in training
    model = Branch(run.config)
    if name != "untrained":
        prefix = f"model.{'student' if run.config.siamese else name}."
        tensors = run.newest().tensors
        model.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    return model


def _output(encoder: nn.Module, layer: str) -> nn.Module:
    return encoder if layer == ENCODER else NamedLayer(encoder, layer)
