"""Recognises which method a weights file comes from, and renames its encoder's tensors as torchvision and timm do."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.encoders.foreign.architecture import COUNTER, Architecture
from carp.encoders.foreign.candidate import Candidate, bare_candidates, candidates
from carp.encoders.foreign.methods import BY_NAME, METHODS, Method
from carp.encoders.foreign.named_row import TIMM, is_timm_folder, row_of_folder, row_of_name
from carp.encoders.foreign.refusal import ambiguous, few, refusal
from carp.encoders.foreign.signatures import counters_at_zero
from carp.encoders.foreign.timm_network import TimmNetwork
from carp.encoders.foreign.vit import VitArchitecture
from carp.errors import CheckpointError, nearest
from carp.restricted.checkpoint_file import read_checkpoint, refuse_claims


@dataclass(frozen=True)
class ForeignWeights:
    """The encoder in a weights file."""

    method: Method
    architecture: Architecture | VitArchitecture | TimmNetwork
    tensors: dict[str, Tensor]
    """The encoder's state dict in float32, without batch-norm counters."""
    leftovers: tuple[str, ...]
    """Tensors of the same entry that the encoder does not use: heads, other branches, queues."""
    unexpected: tuple[str, ...]
    """Leftovers that files of the method are not known to have; none of them is inside the encoder."""
    beside: tuple[str, ...]
    """Other entries of the file."""
    also: tuple[str, ...]
    """Methods whose files have the same layout and whose encoders give the same features."""
    path: Path
    sha256: str
    branch: str
    """`student` or `teacher` in a file that holds both; otherwise empty."""
    uncounted: bool
    """Whether the batch-norm counters are 0: the network was converted from another library, or never trained."""

    @property
    def size(self) -> int:
        """The side of the images that the encoder was trained on."""
        return self.architecture.image_size or self.method.size


def read_foreign(path: str | Path, method: str | None = None, branch: str = "teacher") -> ForeignWeights:
    """Read the encoder of a released checkpoint.

    Args:
        path: The file, or a folder with a network of timm (`config.json` and weights). No code in it is run.
        method: The method that it comes from (`carp weights` lists the names), or `timm:NAME`; recognised by default.
            If the name does not fit the file, the error says what the file looks like.
        branch: The branch of a file that holds a student and a teacher; the encoder of any other file is its teacher.
    """
    path = Path(path)
    row, path = row_of_folder(path) if method is None and is_timm_folder(path) else (_row(method), path)
    found = read_checkpoint(path)
    readings = list(candidates(found, METHODS if row is None or row in METHODS else [*METHODS, row]))
    if not readings:
        raise CheckpointError(f"{path} contains no named tensors ({_describe(found)}). Give a state dict.")
    likely = [c for c in readings if c.complete and c.matches and c.hinted]
    if row is None:
        fitting = likely
    else:
        fitting = [c for c in readings if c.complete and c.matches and c.method is row]
        fitting = fitting or [c for c in bare_candidates(found, row) if c.complete and c.matches]
    if not fitting:
        raise refusal(path, readings, likely, row)
    first = max(fitting, key=lambda c: c.rank(path.name))
    best = next(c for c in fitting if c.method is first.method)  # its layouts are in order of preference
    if row is None:
        _refuse_rivals(path, best, readings)
    if branch != (best.layout.branch or "teacher"):
        best = _of_branch(path, branch, best, readings)
    return _finish(path, found, best, likely)


def _of_branch(path: Path, branch: str, best: Candidate, readings: list[Candidate]) -> Candidate:
    """Read the file with the layout that the same method has for this branch."""
    whole = [c for c in readings if c.complete and c.matches and c.method is best.method]
    chosen = next((c for c in whole if best.layout.branch and c.layout.branch == branch), None)
    if chosen is None:
        held = " and ".join(sorted({c.layout.branch for c in whole} - {""})) or "one encoder"
        raise CheckpointError(
            f"{path} has no branch '{branch}'; it contains {held}. Give one of these with --branch, or leave it out."
        )
    return chosen


def _refuse_rivals(path: Path, best: Candidate, readings: list[Candidate]) -> None:
    """Raise an error if another reading would give different features and the file does not exclude it."""
    evidence = best.evidence(path.name)
    rivals = [
        c
        for c in readings
        if c.complete
        and c.matches
        and c.computes != best.computes
        and ((c.hinted and c.evidence(path.name) >= evidence) or (c.suspected and not best.layout.hints))
    ]
    if rivals:
        raise ambiguous(path, [best, *rivals])


def _row(method: str | None) -> Method | None:
    if method is None:
        return None
    if method.startswith(f"{TIMM}:"):
        return row_of_name(method.removeprefix(f"{TIMM}:"))
    if method not in BY_NAME:
        raise CheckpointError(
            f"'{method}' is not a format of weights.{nearest(method, BY_NAME)} `carp weights` lists: "
            f"{', '.join(BY_NAME)}."
        )
    return BY_NAME[method]


def _finish(path: Path, found: Any, best: Candidate, likely: list[Candidate]) -> ForeignWeights:
    assert best.architecture is not None  # because it is complete
    refuse_claims(path, best.encoder.values(), "Download it again.")
    tensors = own_copies(path, {n: t for n, t in best.encoder.items() if not n.endswith(COUNTER)})
    top = best.layout.path.split("/")[0]
    others = {str(name) for name in found if not isinstance(found[name], Tensor)} - {top}
    evidence = best.evidence("")
    also = [c.method for c in likely if c.evidence("") >= evidence and c.computes == best.computes]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ForeignWeights(
        best.method,
        best.architecture,
        tensors,
        tuple(best.leftovers),
        tuple(best.unexpected),
        tuple(sorted(others)),
        tuple(dict.fromkeys(method.name for method in also if method is not best.method)),
        path,
        digest,
        best.layout.branch,
        counters_at_zero(best.contents),
    )


def own_copies(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors of a file as float32, because the mapped file may change; refuse numbers that are not finite."""
    copies = {
        name: t.to(torch.float32, copy=True, memory_format=torch.contiguous_format) for name, t in tensors.items()
    }
    for name, tensor in copies.items():
        # A variance that overflows in half precision is infinite; only the bias of its channel remains
        if not (torch.isfinite(tensor) | (tensor.isposinf() & name.endswith("running_var"))).all():
            raise CheckpointError(
                f"{path} cannot be used: {name} contains values that are not finite. Download it again."
            )
    return copies


def _describe(found: Any) -> str:
    if isinstance(found, Mapping):
        return f"its entries are {few([str(name) for name in found]) or 'none'}"
    return f"it contains a {type(found).__name__}"
