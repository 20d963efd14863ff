"""The weights that a run starts from, and the settings that follow from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from carp.config import Config, EncoderSettings, resolve_part
from carp.config.recipe import read_recipe, read_settings
from carp.encoders.foreign import ForeignWeights, read_foreign
from carp.encoders.foreign.architecture import COUNTER, Architecture, Traits, timm_resnet
from carp.encoders.foreign.named_row import is_timm_folder
from carp.encoders.foreign.timm_network import TimmNetwork
from carp.encoders.foreign.vit import VitArchitecture, timm_vit
from carp.encoders.layers import tensors_hash
from carp.encoders.model_argument import is_weights, split_weights
from carp.encoders.packaged import PACKAGED
from carp.encoders.read_export import CarpExport, build_own, read_own, without_reading
from carp.errors import CheckpointError, ConfigError, nearest, received
from carp.model.encoder import build_encoder, timm_options
from carp.runs.run_folder import Run, open_run

# What the weights decide; a value that is given must be the same
_DECIDED = ("encoder", "encoder_options", "stem", "stem_stride", "mean", "deviation", "interpolation")
_SIZE = "global_size"


@dataclass(frozen=True)
class StartingPoint:
    """An encoder to start from."""

    name: str
    """As it was given."""
    tensors: dict[str, Tensor]
    """The encoder's state dict by the names of `build_encoder`, without batch-norm counters."""
    settings: dict[str, Any]
    """Settings of the encoder and its images."""
    size: int
    """Of the images that the weights were trained on."""

    @property
    def digest(self) -> str:
        """SHA-256 of the tensors."""
        return tensors_hash(self.tensors)


def read_start(start: str | Path) -> StartingPoint:
    """Read a run folder or weights in any form; nothing in a file is executed."""
    try:
        return _checked(_read(str(start)))
    except OSError as error:
        raise CheckpointError(
            f"cannot read the start {received(str(start))}: {error.strerror or error}. Give a run folder, or weights "
            "in a form that docs/weights.md lists."
        ) from error


def _read(name: str) -> StartingPoint:
    if not is_weights(name):
        if not Path(name).expanduser().exists() and (hint := nearest(name, PACKAGED)):
            raise CheckpointError(f"there is no folder or file {name}.{hint} `carp weights` lists what can be read.")
        return _of_run(name, open_run(Path(name).expanduser()))
    method, path = split_weights(name)
    path = path.expanduser()
    own = None if method or is_timm_folder(path) else read_own(path)
    if own is not None and own.method is None:
        return _of_export(name, own)
    return _of_foreign(name, read_foreign(path, method or (own.method if own else None)))


def settings_with_start(
    recipe: str | Path | None, overrides: Mapping[str, Any], begun: Config | None = None, folder: Path | None = None
) -> dict[str, Any]:
    """Read the settings like `read_settings`, and add those that follow from `start`.

    A run that has begun in `folder`, with the settings `begun`, needs its start no longer: the file may be missing.
    """
    values = read_settings(recipe, overrides)
    name = values.get("start")
    _refuse_another_kind(name, begun, folder)
    if name is None:
        return values
    if begun is not None and begun.start == str(name):
        point = begun.model_dump()
        decided, size, digest = {key: point[key] for key in _DECIDED}, begun.global_size, begun.start_digest
    else:
        found = read_start(name)
        decided, size, digest = found.settings, found.size, found.digest
        if begun is not None and digest != begun.start_digest:
            raise CheckpointError(
                f"{folder} started from {begun.start}, received other weights: {name}. Give --from {begun.start} to "
                "resume it, or another --out."
            )
    if values.get("start_digest") not in (None, digest):
        raise ConfigError(
            f"start_digest is {received(values['start_digest'])}, but the weights of {name} are {digest}. Give the "
            "weights of that digest, or leave it out."
        )
    # A recipe is written for another encoder unless it names the start itself
    given = overrides if "start" in overrides else values
    for key in _DECIDED:
        if key in given and _plain(given[key]) not in (_plain(decided[key]), "auto"):
            raise ConfigError(
                f"{key} is {received(_plain(decided[key]))} in {name}, received {received(given[key])}. Leave {key} "
                "out, or leave out --from to start from random weights."
            )
    if values.get("validation") is None and "held_out" not in values:
        values = {**values, "held_out": "auto" if begun is None else begun.held_out}
    sized = _is_sized(recipe, overrides)
    return {**values, **({} if sized else {_SIZE: size}), **decided, "start": str(name), "start_digest": digest}


def may_shrink(recipe: str | Path | None, overrides: Mapping[str, Any]) -> bool:
    """Return whether `--minutes` may make the views smaller, because the user did not choose their size."""
    return not _is_sized(recipe, overrides)


def measures_share(recipe: str | Path | None, overrides: Mapping[str, Any]) -> bool:
    """Return whether `start_share` is measured before the first step (evaluation/during_training/start_share.py)."""
    values = read_settings(recipe, overrides)
    return values.get("start") is not None and values.get("start_share") == "auto"


def _is_sized(recipe: str | Path | None, overrides: Mapping[str, Any]) -> bool:
    """Return whether the user chose the size of the views; the default recipe is not such a choice."""
    return _SIZE in overrides or (recipe is not None and _SIZE in read_recipe(recipe))


def _refuse_another_kind(name: object, begun: Config | None, folder: Path | None) -> None:
    """Raise if a run with a start is resumed without one, or the other way round."""
    if begun is None or (begun.start is None) == (name is None):
        return
    if begun.start is not None:
        raise CheckpointError(f"{folder} started from {begun.start}. Add --from {begun.start} to resume it.")
    raise CheckpointError(
        f"{folder} started from random weights, received --from {name}. Leave out --from to resume it, or use another "
        "--out."
    )


def _of_run(name: str, run: Run) -> StartingPoint:
    config, point = run.config, run.checkpoint()
    prefix = f"model.{'student' if config.siamese else 'teacher'}.encoder."
    tensors = {key.removeprefix(prefix): t for key, t in point.tensors.items() if key.startswith(prefix)}
    return StartingPoint(
        name,
        tensors,
        {
            "encoder": config.encoder,
            "encoder_options": timm_options(config),
            "stem": config.stem,
            "stem_stride": config.stem_stride,
            "mean": config.mean,
            "deviation": config.deviation,
            "interpolation": config.interpolation,
        },
        config.global_size,
    )


def _of_export(name: str, own: CarpExport) -> StartingPoint:
    about = own.about
    images = {"mean": about.mean, "deviation": about.std, "interpolation": about.interpolation}
    stem = {"stem": about.origin.get("stem", "encoder"), "stem_stride": about.origin.get("stem_stride", 1)}
    network = {"encoder": about.architecture, "encoder_options": without_reading(about.options)}
    return StartingPoint(name, dict(build_own(own).state_dict()), {**network, **stem, **images}, about.size)


def _of_foreign(name: str, weights: ForeignWeights) -> StartingPoint:
    encoder, options = _timm(name, weights)
    row = weights.method
    return StartingPoint(
        name,
        weights.tensors,
        {
            "encoder": encoder,
            "encoder_options": options,
            "stem": "encoder",
            "stem_stride": 1,
            "mean": row.mean,
            "deviation": row.std,
            "interpolation": row.interpolation,
        },
        weights.size,
    )


def _timm(name: str, weights: ForeignWeights) -> tuple[str, dict[str, Any]]:
    """Return timm's name and arguments for the network, which training builds."""
    found = weights.architecture
    if isinstance(found, TimmNetwork):
        return found.name, found.options
    if isinstance(found, VitArchitecture):
        encoder, options = timm_vit(found)
        return encoder, {**options, "dynamic_img_size": True}
    assert isinstance(found, Architecture)
    if weights.method.traits != Traits() or found.stem != 64:
        raise CheckpointError(
            f"{name} cannot be trained further: its {found} ({weights.method.title}) is not a network that timm "
            "builds. Start from other weights (`carp weights`); commands such as `carp embed` can still read it."
        )
    return timm_resnet(found)


def _checked(point: StartingPoint) -> StartingPoint:
    """Return a point without counters; raise unless its tensors are those of the network that training builds.

    A stem that depended on the size of images is settled, because training may use another size.
    """
    with torch.device("meta"):
        encoder = build_encoder(resolve_part(EncoderSettings, {**point.settings, _SIZE: point.size}))
    stem = "small" if isinstance(getattr(encoder, "maxpool", None), nn.Identity) else "encoder"
    expected = {key: t for key, t in encoder.state_dict().items() if t.is_floating_point()}
    tensors = {key: t for key, t in point.tensors.items() if not key.endswith(COUNTER) and t.is_floating_point()}
    for key in (*expected, *tensors):
        here, there = (list(held[key].shape) if key in held else "missing" for held in (tensors, expected))
        if here != there:
            raise CheckpointError(
                f"{point.name} does not fit the encoder {point.settings['encoder']}: {key} is {here}, expected {there}."
            )
    return StartingPoint(point.name, tensors, {**point.settings, "stem": stem}, point.size)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
