"""Which method a file of weights comes from, and its encoder's tensors under the names of torchvision and timm."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.errors import CheckpointError, nearest
from carp.features.foreign.architecture import (
    COUNTER,
    Architecture,
    architecture_of,
    expected_shapes,
    is_encoder_key,
)
from carp.features.foreign.safe_file import read_checkpoint
from carp.features.foreign.table import BY_NAME, METHODS, Layout, Method
from carp.features.foreign.tells import Contents

_WRAPPERS = ("module.", "_orig_mod.")
_SHOWN = 3  # names in a message
_ANY = "resnet"  # the row of bare encoders, which may come from anywhere


@dataclass(frozen=True)
class ForeignWeights:
    """The encoder that a file holds."""

    method: Method
    architecture: Architecture
    tensors: dict[str, Tensor]
    """The encoder's state dict in float32, without the counters of batch norm."""
    leftovers: tuple[str, ...]
    """Tensors of the same entry that the encoder has no use for: heads, other branches, queues."""
    unexpected: tuple[str, ...]
    """Those among them that the method is not known to have."""
    beside: tuple[str, ...]
    """Other entries of the file."""
    also: tuple[str, ...]
    """Methods whose files have the same layout and whose encoders compute alike: the file cannot tell."""
    path: Path
    sha256: str


@dataclass
class _Candidate:
    """A file seen through one layout of one method."""

    method: Method
    layout: Layout
    contents: Contents
    encoder: dict[str, Tensor]
    leftovers: list[str]
    architecture: Architecture | None
    told: bool  # whether everything that tells the method is there
    hinted: bool  # and what its files usually have
    missing: list[str] = field(default_factory=list)
    mismatching: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.architecture is not None and not self.missing and not self.mismatching

    @property
    def unexpected(self) -> list[str]:
        return [name for name in self.leftovers if not name.startswith(self.method.heads or ("\0",))]

    def rank(self, file_name: str) -> tuple[int, int, int, int]:
        """Larger fits better: what tells it, the file's own name, nothing unknown left over, a long prefix."""
        named = self.method.name != _ANY and self.method.name.replace("-", "") in re.sub(
            r"[\W_]", "", file_name.lower()
        )
        tells = len(self.layout.tells) + 2 * len(self.layout.hints) + 2 * bool(self.layout.prefix)
        return tells, int(named), -len(self.unexpected), len(self.layout.prefix)


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
    candidates = list(_candidates(found))
    if not candidates:
        raise CheckpointError(f"{path} holds no named tensors ({_describe(found)}): expected a state dict.")
    whole = [c for c in candidates if c.complete and c.told and c.hinted]
    fitting = whole if row is None else [c for c in candidates if c.complete and c.told and c.method is row]
    if row is not None and not fitting:  # a bare encoder may come from anywhere
        fitting = [replace(c, method=row) for c in whole if c.method.name == _ANY and not row.traits.cifar]
    if not fitting:
        raise _refusal(path, candidates, whole, row)
    likely = max(fitting, key=lambda c: c.rank(path.name))
    best = next(c for c in fitting if c.method is likely.method)  # its layouts stand in the order of preference
    return _finish(path, found, best, whole)


def _row(method: str | None) -> Method | None:
    if method is None:
        return None
    if method not in BY_NAME:
        raise CheckpointError(
            f"there are no weights '{method}'.{nearest(method, BY_NAME)} `carp weights` lists: {', '.join(BY_NAME)}."
        )
    return BY_NAME[method]


def _candidates(found: Any) -> Iterator[_Candidate]:
    """The file through every layout that it has the entry for."""
    entries = frozenset(map(str, found)) if isinstance(found, Mapping) else frozenset()
    seen: dict[str, Contents | None] = {}
    for method in METHODS:
        for layout in method.layouts:
            if layout.path not in seen:
                tensors = _tensors_at(found, layout.path)
                seen[layout.path] = Contents(tensors, entries) if tensors else None
            contents = seen[layout.path]
            if contents is not None:
                yield _candidate(method, layout, contents)


def _candidate(method: Method, layout: Layout, contents: Contents) -> _Candidate:
    encoder: dict[str, Tensor] = {}
    leftovers = []
    for name, tensor in contents.tensors.items():
        key = _renamed(name.removeprefix(layout.prefix), layout) if name.startswith(layout.prefix) else ""
        if is_encoder_key(key):
            encoder[key] = tensor
        else:
            leftovers.append(name)
    architecture = architecture_of(encoder)
    told, hinted = (all(tell(contents) for tell in tells) for tells in (layout.tells, layout.hints))
    candidate = _Candidate(method, layout, contents, encoder, leftovers, architecture, told, hinted)
    if architecture is not None and _fits(architecture, method):
        _compare(candidate, expected_shapes(architecture, method.traits))
    else:
        candidate.architecture = None
    return candidate


def _fits(architecture: Architecture, method: Method) -> bool:
    """Whether the method's networks have such a stem and so many stages."""
    stem, stages = (3, 3) if method.traits.cifar else (7, 4)
    return (architecture.stem_kernel, len(architecture.depths)) == (stem, stages)


def _compare(candidate: _Candidate, expected: dict[str, tuple[int, ...]]) -> None:
    for name, shape in expected.items():
        tensor = candidate.encoder.get(name)
        if tensor is None:
            candidate.missing.append(name)
        elif tuple(tensor.shape) != shape or not tensor.is_floating_point():
            candidate.mismatching.append(f"{name} {list(tensor.shape)} instead of {list(shape)}")
    more = [name for name in candidate.encoder if name not in expected and not name.endswith(COUNTER)]
    candidate.mismatching += [f"{name}, which {candidate.architecture} does not have" for name in more]


def _renamed(key: str, layout: Layout) -> str:
    for pattern, replacement in layout.renames:
        key = re.sub(pattern, replacement, key)
    return key


def _tensors_at(found: Any, path: str) -> dict[str, Tensor]:
    """The named tensors of an entry, without what wrappers put before all of their names."""
    for step in path.split("/") if path else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return {}
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    for wrapper in _WRAPPERS * 2:
        if tensors and all(name.startswith(wrapper) for name in tensors):
            tensors = {name.removeprefix(wrapper): value for name, value in tensors.items()}
    return tensors


def _finish(path: Path, found: Any, best: _Candidate, whole: list[_Candidate]) -> ForeignWeights:
    assert best.architecture is not None  # it is complete
    held, size = sum(t.numel() * t.element_size() for t in best.encoder.values()), path.stat().st_size
    if held > size:
        raise CheckpointError(f"{path} is refused: its {size:,} bytes claim to hold {held:,} bytes of weights.")
    tensors = {n: t.to(torch.float32).contiguous() for n, t in best.encoder.items() if not n.endswith(COUNTER)}
    for name, tensor in tensors.items():
        # A variance beyond what half precision can hold is infinite there; its channel is left with its bias
        if not (torch.isfinite(tensor) | (tensor.isposinf() & name.endswith("running_var"))).all():
            raise CheckpointError(f"{path} cannot be used: {name} holds numbers that are not finite.")
    top = best.layout.path.split("/")[0]
    others = {str(name) for name in found if not isinstance(found[name], Tensor)} - {top}
    evidence = best.rank("")[0]
    also = [c.method for c in whole if c.rank("")[0] >= evidence and _computes(c.method) == _computes(best.method)]
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
    )


def _computes(method: Method) -> tuple[object, ...]:
    return method.traits, method.mean, method.std, method.size


def _refusal(path: Path, candidates: list[_Candidate], whole: list[_Candidate], row: Method | None) -> CheckpointError:
    """Say what the file looks like, and what is wrong with that."""
    if row is not None and whole:
        likely = max(whole, key=lambda c: c.rank(path.name)).method
        return CheckpointError(
            f"{path} is not in the format of {row.name}: it looks like {likely.name} ({likely.title}). Give it as "
            f"{likely.name}, or without a name."
        )
    mine = [c for c in candidates if row is None or c.method is row] or candidates
    near = max(mine, key=lambda c: (len(c.encoder), c.told, c.rank(path.name)))
    names = list(near.contents.tensors)
    if near.architecture is None:
        return CheckpointError(
            f"{path} holds no ResNet that CARP knows: {_what(near, names)}. The nearest format is {near.method.name}; "
            "`carp weights` lists all."
        )
    problems = [f"it lacks {_few(near.missing)}"] if near.missing else []
    problems += [f"it has {_few(near.mismatching)}"] if near.mismatching else []
    return CheckpointError(
        f"{path} is not complete: its nearest format is {near.method.name} with a {near.architecture}, but "
        f"{' and '.join(problems)}."
    )


def _what(near: _Candidate, names: list[str]) -> str:
    """In a few words, what the tensors look like."""
    if any(re.search(r"(^|\.)(cls_token|pos_embed|patch_embed\.)|\.attn\.", name) for name in names):
        return f"its tensors are a vision transformer's ({_few(names)})"
    stem = near.encoder.get("conv1.weight")
    if stem is not None and stem.ndim == 4 and tuple(stem.shape[1:]) != (3, 7, 7):
        return f"its first convolution is {list(stem.shape)}, expected [64, 3, 7, 7]"
    return f"its tensors are {_few(names)}"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _describe(found: Any) -> str:
    if isinstance(found, Mapping):
        return f"its entries are {_few([str(name) for name in found]) or 'none'}"
    return f"it holds a {type(found).__name__}"
