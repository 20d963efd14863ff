"""Error messages for weights that cannot be read: what the file looks like, what is wrong, and what to do."""

import re
from pathlib import Path

from carp.config import IMAGENET_MEAN
from carp.encoders.foreign.candidate import Candidate
from carp.encoders.foreign.methods import Method
from carp.encoders.foreign.vit import VitArchitecture
from carp.errors import CheckpointError

_SHOWN, _LONGEST = 3, 200  # names in a message, and characters per name


def refusal(path: Path, readings: list[Candidate], likely: list[Candidate], row: Method | None) -> CheckpointError:
    """Return an error that names the nearest format and why the file does not match it."""
    if row is not None and likely:
        method = max(likely, key=lambda c: c.rank(path.name)).method
        return CheckpointError(
            f"{path} is not in the format of {row.name}: it looks like {method.name} ({method.title}). Give "
            f"{method.name}:{path}, or the file without a name."
        )
    mine = [c for c in readings if row is None or c.method is row] or readings
    intruded = [c for c in mine if c.fits and c.intruders]
    if intruded:
        return _intruded(path, min(intruded, key=lambda c: (not c.matches, len(c.intruders))))
    near = max(mine, key=lambda c: (len(c.encoder), c.matches, c.rank(path.name)))
    names = list(near.contents.tensors)
    if near.architecture is None and not near.mismatching:
        return CheckpointError(
            f"{path} does not contain an encoder that CARP knows: {_what(near, names)}. The nearest format is "
            f"{near.method.name}; `carp weights` lists all formats."
        )
    problems = [f"it lacks {few(near.missing)}"] if near.missing else []
    problems += [f"it has {few(near.mismatching)}"] if near.mismatching else []
    network = near.architecture or "vision transformer"
    return CheckpointError(
        f"{path} does not match a known format: the nearest format is {near.method.name} with a {network}, but "
        f"{' and '.join(problems)}. `carp weights` lists all formats; download the file again if it is incomplete."
    )


def ambiguous(path: Path, readings: list[Candidate]) -> CheckpointError:
    """Return an error for a file that can be read in several ways that give different features."""
    ways = dict.fromkeys(f"{c.method.name} ({_way(c)})" for c in readings)
    names = dict.fromkeys(f"{c.method.name}:{path}" for c in readings)
    return CheckpointError(
        f"{path} can be read in {len(ways)} ways that give different features, and its content does not show which is "
        f"right: as {' or as '.join(ways)}. Name the right one: {' or '.join(names)}."
    )


def few(names: list[str]) -> str:
    """Return the first names and the number of the others."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(_printable(name) for name in names[:_SHOWN]) + more


def _printable(name: str) -> str:
    """Return a name from a file on one line, without control characters."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "…"


def _intruded(path: Path, near: Candidate) -> CheckpointError:
    """Return an error for a known network with additional tensors."""
    return CheckpointError(
        f"{path} is refused: its encoder is a {near.architecture} with tensors that such a network does not have "
        f"({few(near.intruders)}), so it computes something else. CARP reads plain ResNets and vision transformers; "
        "docs/weights.md lists them."
    )


def _way(reading: Candidate) -> str:
    """Describe how a reading computes, in a few words."""
    method, network = reading.method, reading.architecture
    pixels = "pixels from 0 to 1" if not any(method.mean) else f"mean {method.mean[0]:g}"
    words = ["ImageNet's normalisation" if method.mean == IMAGENET_MEAN else pixels]
    if isinstance(network, VitArchitecture):
        words += [f"{network.heads} heads"] + (["DINO's positions"] if method.vit.dino_positions else [])
    elif method.traits.tensorflow_padding:
        words.append("TensorFlow's padding")
    return ", ".join([method.title, *words])


def _what(near: Candidate, names: list[str]) -> str:
    """Describe the tensors in a few words."""
    if any(re.search(r"(^|\.)(cls_token|pos_embed|patch_embed\.)|\.attn\.", name) for name in names):
        return f"its tensors are those of a vision transformer ({few(names)})"
    stem = near.encoder.get("conv1.weight")
    if stem is not None and stem.ndim == 4 and tuple(stem.shape[1:]) != (3, 7, 7):
        return f"its first convolution is {list(stem.shape)}, expected [64, 3, 7, 7]"
    return f"its tensors are {few(names)}"
