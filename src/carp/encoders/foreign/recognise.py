"""Which method a file of weights comes from, and its encoder's tensors under the names of torchvision and timm."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.encoders.foreign.architecture import COUNTER, Architecture
from carp.encoders.foreign.candidate import Candidate, bare_candidates, candidates
from carp.encoders.foreign.methods import BY_NAME, Method
from carp.encoders.foreign.refusal import ambiguous, few, refusal
from carp.encoders.foreign.signatures import counters_at_zero
from carp.encoders.foreign.vit import VitArchitecture
from carp.errors import CheckpointError, nearest
from carp.restricted.checkpoint_file import read_checkpoint


@dataclass(frozen=True)
class ForeignWeights:
    """The encoder that a file holds."""

    method: Method
    architecture: Architecture | VitArchitecture
    tensors: dict[str, Tensor]
    """The encoder's state dict in float32, without the counters of batch norm."""
    leftovers: tuple[str, ...]
    """Tensors of the same entry that the encoder has no use for: heads, other branches, queues."""
    unexpected: tuple[str, ...]
    """Those among them that the method is not known to have; none of them lies inside the encoder."""
    beside: tuple[str, ...]
    """Other entries of the file."""
    also: tuple[str, ...]
    """Methods whose files have the same layout and whose encoders give the same features."""
    path: Path
    sha256: str
    uncounted: bool
    """Batch norm counted no batch: the network was converted from another library, or never trained."""

    @property
    def size(self) -> int:
        """Side of the images that the encoder was trained for."""
        return self.architecture.image_size or self.method.size


def read_foreign(path: str | Path, method: str | None = None) -> ForeignWeights:
    """Read the encoder of a released checkpoint.

    Args:
        path: The file. Nothing in it is run.
        method: Where it comes from (`carp weights` lists the names); recognised if not given. A name that does not
            fit the file is an error that says what it looks like.
    """
    path = Path(path)
    row = _row(method)
    found = read_checkpoint(path)
    readings = list(candidates(found))
    if not readings:
        raise CheckpointError(f"{path} holds no named tensors ({_describe(found)}): expected a state dict.")
    likely = [c for c in readings if c.complete and c.told and c.hinted]
    if row is None:
        fitting = likely
    else:
        fitting = [c for c in readings if c.complete and c.told and c.method is row]
        fitting = fitting or [c for c in bare_candidates(found, row) if c.complete and c.told]
    if not fitting:
        raise refusal(path, readings, likely, row)
    first = max(fitting, key=lambda c: c.rank(path.name))
    best = next(c for c in fitting if c.method is first.method)  # its layouts stand in the order of preference
    if row is None:
        _refuse_rivals(path, best, readings)
    return _finish(path, found, best, likely)


def _refuse_rivals(path: Path, best: Candidate, readings: list[Candidate]) -> None:
    """Another reading that would give other features, and that nothing in the file speaks against: the user decides."""
    evidence = best.evidence(path.name)
    rivals = [
        c
        for c in readings
        if c.complete
        and c.told
        and c.computes != best.computes
        and ((c.hinted and c.evidence(path.name) >= evidence) or (c.suspected and not best.layout.hints))
    ]
    if rivals:
        raise ambiguous(path, [best, *rivals])


def _row(method: str | None) -> Method | None:
    if method is None:
        return None
    if method not in BY_NAME:
        raise CheckpointError(
            f"there are no weights '{method}'.{nearest(method, BY_NAME)} `carp weights` lists: {', '.join(BY_NAME)}."
        )
    return BY_NAME[method]


def _finish(path: Path, found: Any, best: Candidate, likely: list[Candidate]) -> ForeignWeights:
    assert best.architecture is not None  # it is complete
    held, size = sum(t.numel() * t.element_size() for t in best.encoder.values()), path.stat().st_size
    if held > size:
        raise CheckpointError(f"{path} is refused: its {size:,} bytes claim to hold {held:,} bytes of weights.")
    tensors = {n: _own_copy(t) for n, t in best.encoder.items() if not n.endswith(COUNTER)}
    for name, tensor in tensors.items():
        # A variance beyond what half precision can hold is infinite there; its channel is left with its bias
        if not (torch.isfinite(tensor) | (tensor.isposinf() & name.endswith("running_var"))).all():
            raise CheckpointError(f"{path} cannot be used: {name} holds numbers that are not finite.")
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
        counters_at_zero(best.contents),
    )


def _own_copy(tensor: Tensor) -> Tensor:
    """Apart from the file, which may change."""
    return tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)


def _describe(found: Any) -> str:
    if isinstance(found, Mapping):
        return f"its entries are {few([str(name) for name in found]) or 'none'}"
    return f"it holds a {type(found).__name__}"
