"""Why a file of weights cannot be read: one line that says what it looks like, what is wrong, and what to do."""

import re
from pathlib import Path

from carp.encoders.foreign.candidate import Candidate
from carp.encoders.foreign.methods import IMAGENET_MEAN, Method
from carp.encoders.foreign.vit import VitArchitecture
from carp.errors import CheckpointError

_SHOWN, _LONGEST = 3, 200  # names in a message, and characters of one


def refusal(path: Path, readings: list[Candidate], likely: list[Candidate], row: Method | None) -> CheckpointError:
    """The nearest reading, and why it fails."""
    if row is not None and likely:
        method = max(likely, key=lambda c: c.rank(path.name)).method
        return CheckpointError(
            f"{path} is not in the format of {row.name}: it looks like {method.name} ({method.title}). Give it as "
            f"{method.name}, or without a name."
        )
    mine = [c for c in readings if row is None or c.method is row] or readings
    intruded = [c for c in mine if c.fits and c.intruders]
    if intruded:
        return _intruded(path, min(intruded, key=lambda c: (not c.told, len(c.intruders))))
    near = max(mine, key=lambda c: (len(c.encoder), c.told, c.rank(path.name)))
    names = list(near.contents.tensors)
    if near.architecture is None and not near.mismatching:
        return CheckpointError(
            f"{path} holds no encoder that CARP knows: {_what(near, names)}. The nearest format is {near.method.name}; "
            "`carp weights` lists all."
        )
    problems = [f"it lacks {few(near.missing)}"] if near.missing else []
    problems += [f"it has {few(near.mismatching)}"] if near.mismatching else []
    network = near.architecture or "vision transformer"
    return CheckpointError(
        f"{path} is not complete: its nearest format is {near.method.name} with a {network}, but "
        f"{' and '.join(problems)}."
    )


def ambiguous(path: Path, readings: list[Candidate]) -> CheckpointError:
    """Several readings would give different features, and the file does not say which is right."""
    ways = dict.fromkeys(f"{c.method.name} ({_way(c)})" for c in readings)
    names = dict.fromkeys(f"{c.method.name}:{path}" for c in readings)
    return CheckpointError(
        f"{path} can be read in {len(ways)} ways that give different features, and nothing in it says which is right: "
        f"as {' or as '.join(ways)}. Name the one that it is: {' or '.join(names)}."
    )


def few(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(_printable(name) for name in names[:_SHOWN]) + more


def _printable(name: str) -> str:
    """A name from a file on one line, without control characters."""
    clean = "".join(c if c.isprintable() else "�" for c in name)
    return clean if len(clean) <= _LONGEST else clean[:_LONGEST] + "…"


def _intruded(path: Path, near: Candidate) -> CheckpointError:
    """All of a known network, and more inside it."""
    return CheckpointError(
        f"{path} is refused: its encoder is a {near.architecture} with tensors that such a network does not have "
        f"({few(near.intruders)}), so it computes something else. CARP reads plain ResNets and vision transformers; "
        "docs/weights.md says which."
    )


def _way(reading: Candidate) -> str:
    """How a reading computes, in a few words."""
    method, network = reading.method, reading.architecture
    pixels = "pixels from 0 to 1" if not any(method.mean) else f"mean {method.mean[0]:g}"
    words = ["ImageNet's normalisation" if method.mean == IMAGENET_MEAN else pixels]
    if isinstance(network, VitArchitecture):
        words += [f"{network.heads} heads"] + (["DINO's positions"] if method.vit.dino_positions else [])
    elif method.traits.tensorflow_padding:
        words.append("TensorFlow's padding")
    return ", ".join([method.title, *words])


def _what(near: Candidate, names: list[str]) -> str:
    """In a few words, what the tensors look like."""
    if any(re.search(r"(^|\.)(cls_token|pos_embed|patch_embed\.)|\.attn\.", name) for name in names):
        return f"its tensors are a vision transformer's ({few(names)})"
    stem = near.encoder.get("conv1.weight")
    if stem is not None and stem.ndim == 4 and tuple(stem.shape[1:]) != (3, 7, 7):
        return f"its first convolution is {list(stem.shape)}, expected [64, 3, 7, 7]"
    return f"its tensors are {few(names)}"
