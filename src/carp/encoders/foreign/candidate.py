"""A file seen through one layout of one method: what fits, what is missing, what does not belong."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from carp.encoders.foreign.architecture import (
    COUNTER,
    Architecture,
    architecture_of,
    expected_shapes,
    is_encoder_key,
)
from carp.encoders.foreign.methods import METHODS, Layout, Method
from carp.encoders.foreign.signatures import Contents, no_classifier
from carp.encoders.foreign.vit import VitArchitecture, expected_vit_shapes, is_vit_key, vit_architecture_of

_WRAPPERS = frozenset({"module", "_orig_mod"})  # of DDP, DataParallel, averages and compile
_CLASSIFIERS = ("fc.", "head.", "linear.", "classifier.")
_BARE = "resnet"  # the row of bare encoders, which may come from anywhere


@dataclass
class Candidate:
    """What one layout makes of a file."""

    method: Method
    layout: Layout
    contents: Contents
    encoder: dict[str, Tensor]
    leftovers: list[str]
    architecture: Architecture | VitArchitecture | None
    told: bool  # everything that such a file must have is there
    hinted: bool  # and everything that no other method's file has
    suspected: bool  # it looks like such a file, but others may look so as well
    missing: list[str] = field(default_factory=list)
    mismatching: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether all tensors of the encoder are there with their shapes."""
        return self.architecture is not None and not self.missing and not self.mismatching

    @property
    def complete(self) -> bool:
        """Whether they are there, and the encoder has no others."""
        return self.fits and not self.intruders

    @property
    def unexpected(self) -> list[str]:
        """What is left over and not known to be a head or another branch."""
        return [name for name in self.leftovers if not name.startswith(self.method.heads or ("\0",))]

    @property
    def intruders(self) -> list[str]:
        """Unknown tensors inside the encoder: with them it computes something else."""
        prefix = self.layout.prefix
        heads = tuple(head for head in self.method.heads if head.startswith(prefix) and head != prefix)
        known = (*heads, *(prefix + classifier for classifier in _CLASSIFIERS))
        inside = (name for name in self.leftovers if name.startswith(prefix) and not name.endswith(COUNTER))
        return [name for name in inside if not name.startswith(known)]

    @property
    def computes(self) -> tuple[object, ...]:
        """Equal for two candidates whose features are equal."""
        method = self.method
        how = method.vit.dino_positions if isinstance(self.architecture, VitArchitecture) else method.traits
        return self.architecture, how, method.mean, method.std

    def evidence(self, file_name: str) -> int:
        """How much of the file speaks for this reading."""
        published = self.layout.file is not None and re.fullmatch(self.layout.file, file_name) is not None
        telling = [tell for tell in self.layout.tells if tell is not no_classifier]  # nothing is no evidence
        return len(telling) + 2 * len(self.layout.hints) + 2 * bool(self.layout.prefix) + published

    def rank(self, file_name: str) -> tuple[int, int, int, int]:
        """Larger fits better: evidence, the file's own name, nothing unknown left over, a long prefix."""
        named = self.method.name != _BARE and self.method.name.replace("-", "") in re.sub(
            r"[\W_]", "", file_name.lower()
        )
        return self.evidence(file_name), int(named), -len(self.unexpected), len(self.layout.prefix)


def candidates(found: Any) -> Iterator[Candidate]:
    """The file through every layout that it has the entry for."""
    seen: dict[str, Contents | None] = {}
    for method in METHODS:
        for layout in method.layouts:
            if layout.path not in seen:
                seen[layout.path] = _contents(found, layout.path)
            contents = seen[layout.path]
            if contents is not None:
                yield _candidate(method, layout, contents)


def bare_candidates(found: Any, method: Method) -> Iterator[Candidate]:
    """The file as nothing but an encoder: it may come from anywhere, so any method may be named for it."""
    families = dict.fromkeys(layout.family for layout in method.layouts)
    bare = next(row for row in METHODS if row.name == _BARE)
    for layout in (Layout(one.path, tells=one.tells, family=family) for family in families for one in bare.layouts):
        contents = _contents(found, layout.path)
        if contents is not None:
            yield _candidate(method, layout, contents)


def _candidate(method: Method, layout: Layout, contents: Contents) -> Candidate:
    belongs = is_vit_key if layout.family == "vit" else is_encoder_key
    encoder: dict[str, Tensor] = {}
    leftovers = []
    for name, tensor in contents.tensors.items():
        key = _renamed(name.removeprefix(layout.prefix), layout) if name.startswith(layout.prefix) else ""
        if belongs(key):
            encoder[key] = tensor
        else:
            leftovers.append(name)
    told, hinted = (all(tell(contents) for tell in tells) for tells in (layout.tells, layout.hints))
    suspected = bool(layout.suspicions) and all(tell(contents) for tell in layout.suspicions)
    candidate = Candidate(method, layout, contents, encoder, leftovers, None, told, hinted, suspected)
    if layout.family == "vit":
        transformer = vit_architecture_of(encoder, method.vit)
        if isinstance(transformer, VitArchitecture):
            candidate.architecture = transformer
            _compare(candidate, expected_vit_shapes(transformer))
        elif transformer is not None:
            candidate.mismatching.append(transformer)
        return candidate
    resnet = architecture_of(encoder)
    if resnet is not None and _has_its_stem(resnet, method):
        candidate.architecture = resnet
        _compare(candidate, expected_shapes(resnet, method.traits))
    return candidate


def _has_its_stem(architecture: Architecture, method: Method) -> bool:
    """Whether the method's networks have such a stem and so many stages."""
    stem, stages = (3, 3) if method.traits.cifar else (7, 4)
    return (architecture.stem_kernel, len(architecture.depths)) == (stem, stages)


def _compare(candidate: Candidate, expected: dict[str, tuple[int, ...]]) -> None:
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


def _contents(found: Any, path: str) -> Contents | None:
    entries = frozenset(map(str, found)) if isinstance(found, Mapping) else frozenset[str]()
    for step in path.split("/") if path else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    return Contents(_unwrapped(tensors), entries) if tensors else None


def _unwrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names without what wrappers put into them, anywhere; as they are if two would become one."""
    names = {name: ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in tensors}
    if len(set(names.values())) < len(names):
        return tensors
    return {names[name]: value for name, value in tensors.items()}
