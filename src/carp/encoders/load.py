"""Load any encoder for use: `carp.load(run).embed(images)`."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn

from carp.compute.device import choose_device
from carp.encoders.authors_checkpoint import read_branch
from carp.encoders.foreign import BY_NAME, ForeignWeights, foreign_encoder, read_foreign
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.hub import HUB
from carp.encoders.layers import NamedLayer
from carp.encoders.model_argument import is_weights, name_of_weights, split_weights
from carp.encoders.packaged import or_default, packaged
from carp.encoders.read_export import CarpExport, build_own, read_own
from carp.errors import CarpWarning, CheckpointError, ConfigError, DataError, nearest
from carp.features.extract import RAW_PIXELS_SIDE
from carp.features.feature_options import ENCODER, PROJECTOR, FeatureOptions
from carp.features.store import Store
from carp.images.views.centre_crop import TRANSFORM
from carp.images.views.interpolation import Interpolation
from carp.model.branch import Branch
from carp.model.encoder import check_patches
from carp.model.own_normalisation import for_imagenet_images
from carp.random import Purpose, seed_of
from carp.runs.epoch_argument import at_epoch, split_epoch
from carp.runs.run_folder import Run, is_run, open_run

BranchName = Literal["teacher", "student", "untrained", "raw pixels"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)
TRAINED = ("teacher", "student")  # the branches that an epoch changes


def load(
    model: str | Path | None = None,
    branch: str | Path = "teacher",
    *,
    epoch: int | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    device: str = "auto",
) -> Encoder:
    """Load the encoder of a run, or released weights of another method.

    Args:
        model: A run folder, `RUN@25` for the run at the end of epoch 25, a weights file (also one that `carp export`
            wrote as safetensors or for torchvision), `METHOD:FILE` (`carp weights` lists the methods), or another form
            of weights (docs/weights.md). None is `lite0`, if it is installed.
        branch: The branch of a run: `teacher` or `student`; as baselines, `untrained` (the encoder that the run started
            from, with random or given weights) and `raw pixels` (no encoder, images resized to at most 32 pixels). A
            run with a start gives the branch of its best checkpoint; `teacher@last` is that of its newest one. A file
            with a student and a teacher has both; other weights have no branches, and `load("swav", FILE)` is
            `load("swav:FILE")`.
        epoch: The epoch of a run, another way to write `RUN@EPOCH`; 0 is the start of a run that was given one. None is
            the newest checkpoint, or the best one of a run with a start.
        layer: The output to use: `encoder` (pooled), `projector` (the embedding, for runs and checkpoints of CARP's
            authors), or the name of a layer of the encoder, such as `layer3`, averaged over positions.
        size: Side of the images in pixels. By default the size used for training.
        resize: Length of the shorter side before the centre crop. By default 8/7 of `size`, or `size` up to 64.
        interpolation: How images are resized: `bicubic` or `bilinear`. None is that of the weights, mostly bicubic.
        device: Where to run: `auto`, `cpu`, `cuda` or `mps`.

    Returns:
        The encoder in evaluation mode; `Encoder.embed` turns images into features.
    """
    options = FeatureOptions(layer=layer, size=size, resize=resize, interpolation=interpolation, device=device)
    return load_encoder(or_default(at_epoch(model, epoch)), branch, options)


def load_encoder(model: str | Path, branch: str | Path, options: FeatureOptions) -> Encoder:
    """Load an encoder like `load`, with the options of a command."""
    if model in BY_NAME and split_branch(str(branch))[0] not in BRANCHES:
        return _load_weights(f"{model}:{branch}", "teacher", options)
    if is_weights(model):
        return _load_weights(str(model), str(branch), options)
    name, last = split_branch(str(branch))
    if name not in BRANCHES:
        hint = nearest(str(branch), BRANCHES)
        raise CheckpointError(f"branch must be {', '.join(BRANCHES)}, received '{branch}'.{hint}")
    run = replace(open_run(model), last=last)
    layer, size, resize = options.layer, options.size or run.config.global_size, options.resize
    module: nn.Module
    epochs, epoch = None, run.epoch if name in TRAINED else None
    if name == "raw pixels":
        module, layer, size, resize = nn.Flatten(), ENCODER, min(size, RAW_PIXELS_SIDE), None
    else:
        trained, epochs = _branch(run, name)
        check_patches(trained.encoder, run.config.encoder, {"size": size})
        trained.encoder = for_imagenet_images(trained.encoder, run.config.mean, run.config.deviation)
        module = trained if layer == PROJECTOR else _output(trained.encoder, layer)
    return Encoder(
        module,
        size=size,
        device=choose_device(options.device),
        name=run.folder.resolve().name,
        branch=str(branch),
        layer=layer,
        epochs=epochs,
        epoch=epoch,
        resize=resize,
        interpolation=options.interpolation or run.config.interpolation,
        path=f"{run.folder.resolve()}" + ("" if epoch is None else f"@{epoch}"),
        max_pixels=run.config.max_image_pixels,
        root=run.config.root,
    )


def split_branch(branch: str) -> tuple[str, bool]:
    """Split `teacher@last` into the branch and whether it is that of the newest checkpoint instead of the best one."""
    name, _, when = branch.partition("@")
    return (name, True) if when == "last" and name in TRAINED else (branch, False)


def encoder_of(store: Store, model: str | Path | None = None, *, device: str = "auto") -> Encoder:
    """Load the encoder that extracted the features of a store, verified by the hash of its weights.

    Args:
        store: The features.
        model: Where the encoder is, if it has been moved.
        device: Where to run it.
    """
    about, transform = store.origin.model, store.origin.transform
    if "size" not in transform:  # features of a ranked protocol: whole images, at several scales
        raise DataError(
            f"the images in {store.folder} were not resized to one size, so new images cannot be compared with them. "
            "Extract features with `carp embed`, then run `carp index` and `carp search` on those."
        )
    path = model or about.get("path")
    if model and is_run(model) and split_epoch(model)[1] is None:
        path = at_epoch(model, about.get("epoch"))  # a run that was moved
    if not path:
        raise ConfigError(f"{store.folder} does not record where its model {about['name']} is. Give it with --model.")
    if not model and not packaged(path) and not split_epoch(split_weights(path)[1])[0].exists():
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


def _load_weights(model: str, branch: str, options: FeatureOptions) -> Encoder:
    method, file = split_weights(model)
    own = None if method else read_own(file.expanduser())
    if own is not None and own.method is None:
        return _load_export(own, options)
    method = method or (own.method if own else None)
    if options.layer == PROJECTOR:
        weights = read_foreign(file.expanduser(), method, branch)
        module = _embedding(weights)
    else:
        encoder, weights = foreign_encoder(file.expanduser(), method, branch)
        module = _output(encoder, options.layer)
    return Encoder(
        module,
        size=options.size or weights.size,
        device=choose_device(options.device),
        name=name_of_weights(model),
        branch=weights.branch,
        layer=options.layer,
        resize=options.resize,
        interpolation=options.interpolation or weights.method.interpolation,
        path=_path(model, file.expanduser().resolve(), weights),
    )


def _path(model: str, file: Path, weights: ForeignWeights) -> str:
    """Return a model argument that loads the same weights from any folder."""
    if packaged(model) or model.startswith(HUB):
        return model
    return str(file) if file.is_dir() else f"{weights.method.name}:{file}"


def _embedding(weights: ForeignWeights) -> nn.Module:
    """Build the branch whose output is the embedding."""
    if not weights.method.whole:
        raise CheckpointError(
            f"{weights.path} is loaded without its projector. Use --layer encoder, or the name of a layer."
        )
    return read_branch(weights.path, weights.branch).build()


def _load_export(own: CarpExport, options: FeatureOptions) -> Encoder:
    """Load the encoder of a run from an export; it has the name of the run."""
    if options.layer == PROJECTOR:
        raise CheckpointError(f"{own.path} is an export without its projector. Use --layer encoder, or give the run.")
    about, origin = own.about, own.about.origin
    encoder, size = build_own(own), options.size or about.size
    check_patches(encoder, about.architecture, {"size": size})
    return Encoder(
        _output(for_imagenet_images(encoder, about.mean, about.std), options.layer),
        size=size,
        device=choose_device(options.device),
        name=str(origin.get("run") or own.path.name.partition(".")[0]),
        branch=str(origin.get("branch", "")),
        layer=options.layer,
        epochs=origin.get("epochs"),
        epoch=origin.get("epoch"),
        resize=about.resize if options.size is None and options.resize is None else options.resize,
        interpolation=options.interpolation or about.interpolation,
        path=str(own.path.resolve()),
    )


def _branch(run: Run, name: str) -> tuple[Branch, int | None]:
    """Build a branch of a run, and return how many epochs it was trained for; None for the untrained one."""
    torch.manual_seed(seed_of(run.config.seed, Purpose.WEIGHTS))  # as in training
    model = Branch(run.config)
    given = run.config.start is not None  # no seed reproduces the weights that the run started from
    if name not in TRAINED and not given:
        return model, None
    prefix = f"model.{'student' if run.config.siamese or name not in TRAINED else name}."
    point = (run if name in TRAINED else replace(run, epoch=0)).checkpoint()
    model.load_state_dict({k.removeprefix(prefix): v for k, v in point.tensors.items() if k.startswith(prefix)})
    return model, point.step // run.steps_per_epoch if name in TRAINED else None


def _output(encoder: nn.Module, layer: str) -> nn.Module:
    return encoder if layer == ENCODER else NamedLayer(encoder, layer)
