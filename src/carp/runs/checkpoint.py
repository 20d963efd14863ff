"""Checkpoints: versioned, atomic, checked, and safe to load.

A checkpoint is a folder `step-00000123` with `tensors.safetensors` and `manifest.json`. It is written under a temporary
name, synced, then renamed, so a folder of that name is complete. The manifest holds the SHA-256 of the tensors and of
itself. A checkpoint that does not match is reported, and the one before it is used. Nothing is unpickled.

A checkpoint that is never removed (a milestone) is marked by its name: `step-00000123-epoch-25`. So is the best one of
a run that is compared with its start: `step-00000123-best`.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from carp.errors import CheckpointError
from carp.files.atomic import remove_unfinished, replacing
from carp.files.digests import sha256_of_file, sha256_of_json

FORMAT = 1
_TENSORS, _MANIFEST = "tensors.safetensors", "manifest.json"
_BEST = "-best"
_NAME = re.compile(rf"step-(\d+)(-epoch-\d+)?({_BEST})?")


@dataclass(frozen=True)
class Checkpoint:
    """Named tensors, and everything else as values for JSON."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    digest: str | None = None
    """SHA-256 of everything in it, if it was read from a file."""


def save(folder: Path, checkpoint: Checkpoint, *, keep: int, milestone: int | None = None, best: bool = False) -> Path:
    """Write a checkpoint into `folder` and remove all but the newest `keep`, the milestones and the best one.

    If anything fails, the folder is unchanged.

    Args:
        folder: The folder of the checkpoints.
        checkpoint: The state after a step.
        keep: The number of checkpoints to keep.
        milestone: The epoch that ends here, if its checkpoint is never removed.
        best: Whether it is better than all before it; the best one is kept until another replaces it.
    """
    epoch = "" if milestone is None else f"-epoch-{milestone}"
    final = folder / f"step-{checkpoint.step:08d}{epoch}{_BEST if best else ''}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        with replacing(final) as unfinished:
            unfinished.mkdir()
            save_file(_savable(checkpoint.tensors), unfinished / _TENSORS)
            content = {
                "format": FORMAT,
                "step": checkpoint.step,
                "state": checkpoint.state,
                "tensors_sha256": sha256_of_file(unfinished / _TENSORS),
            }
            manifest = {"content": content, "sha256": sha256_of_json(content)}
            (unfinished / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {reason}. The previous checkpoints are intact; free some space or "
            "fix the folder, then rerun the same command."
        ) from error
    for former in [path for path in list_checkpoints(folder) if is_best(path)][:-1]:  # the newest one is the best
        former.rename(former.with_name(former.name.removesuffix(_BEST)))
    whole = list_checkpoints(folder)
    place = whole.index(final)
    old = [path for path in whole[: max(0, place + 1 - keep)] if not is_milestone(path) and not is_best(path)]
    for unwanted in (*old, *whole[place + 1 :]):  # later ones are damaged and were skipped
        shutil.rmtree(unwanted, ignore_errors=True)
    return final


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the memory of the host, which training does not change while they are written."""
    layout = torch.contiguous_format
    return {name: tensor.detach().to("cpu", memory_format=layout, copy=True) for name, tensor in tensors.items()}


def is_milestone(path: Path) -> bool:
    """Return whether a checkpoint is never removed."""
    match = _NAME.fullmatch(path.name)
    return match is not None and match[2] is not None


def is_best(path: Path) -> bool:
    """Return whether a checkpoint is the best one of its run so far."""
    match = _NAME.fullmatch(path.name)
    return match is not None and match[3] is not None


def step_of(path: Path) -> int | None:
    """Return the step of a checkpoint by its name; None for a folder that CARP did not name."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def list_checkpoints(folder: Path) -> list[Path]:
    """List all complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def load(path: Path) -> Checkpoint:
    """Read one checkpoint and verify its checksums."""
    try:
        manifest = json.loads((path / _MANIFEST).read_text())
        content = manifest["content"]
        if manifest["sha256"] != sha256_of_json(content):
            raise CheckpointError(f"{path} was altered: its manifest does not match its checksum.")
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has checkpoint format {content['format']}; this version of CARP reads {FORMAT}. Update CARP."
            )
        if sha256_of_file(path / _TENSORS) != content["tensors_sha256"]:
            raise CheckpointError(f"{path} is damaged: its tensors do not match their checksum.")
        return Checkpoint(content["step"], load_file(path / _TENSORS), content["state"], manifest["sha256"])
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__} in its manifest or tensors.") from error


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, and one line for each damaged one that was skipped."""
    problems: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return load(path), problems
        except CheckpointError as error:
            problems.append(f"{error} Using the previous one.")
    return None, problems


def _savable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
