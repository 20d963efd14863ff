"""Candidates: a file read through one layout of one method, with the tensors that fit, are missing or do not belong."""

import re
from collections.abc import Iterator, Mapping, Sequence
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
from carp.encoders.foreign.timm_network import TimmNetwork, expected_timm_shapes
from carp.encoders.foreign.vit import VitArchitecture, expected_vit_shapes, is_vit_key, vit_architecture_of

_WRAPPERS = frozenset({"module", "_orig_mod"})  # from DDP, DataParallel, weight averaging and torch.compile
_CLASSIFIERS = ("fc.", "head.", "linear.", "classifier.")
_BARE = "resnet"  # the row of bare encoders, which can come from any method


@dataclass
class Candidate:
    """A file as one layout reads it."""

    method: Method
    layout: Layout
    contents: Contents
    encoder: dict[str, Tensor]
    leftovers: list[str]
    architecture: Architecture | VitArchitecture | TimmNetwork | None
    matches: bool  # the file has everything that the layout requires
    hinted: bool  # it also has all hints, which files of other methods do not have
    suspected: bool  # it looks like a file of the method, but other files may look the same
    missing: list[str] = field(default_factory=list)
    mismatching: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether the file has all tensors of the encoder, with the right shapes."""
        return self.architecture is not None and not self.missing and not self.mismatching

    @property
    def complete(self) -> bool:
        """Whether it fits and the encoder has no other tensors."""
        return self.fits and not self.intruders

    @property
    def unexpected(self) -> list[str]:
        """The leftovers that are not known to be a head or another branch."""
        return [name for name in self.leftovers if not name.startswith(self.method.heads or ("\0",))]

    @property
    def intruders(self) -> list[str]:
        """The unknown tensors inside the encoder, which show that it computes something else."""
        prefix = self.layout.prefix
        heads = tuple(head for head in self.method.heads if head.startswith(prefix) and head != prefix)
        known = (*heads, *(prefix + classifier for classifier in _CLASSIFIERS))
        inside = (name for name in self.leftovers if name.startswith(prefix) and not name.endswith(COUNTER))
        return [name for name in inside if not name.startswith(known)]

    @property
    def computes(self) -> tuple[object, ...]:
        """A key that is equal for two candidates if they give the same features."""
        method = self.method
        how = method.vit.dino_positions if isinstance(self.architecture, VitArchitecture) else method.traits
        return self.architecture, how, method.mean, method.std

    def evidence(self, file_name: str) -> int:
        """Return how much in the file supports this reading."""
        published = self.layout.file is not None and re.fullmatch(self.layout.file, file_name) is not None
        # The absence of a head is not evidence
        telling = [test for test in self.layout.required if test is not no_classifier]
        return len(telling) + 2 * len(self.layout.hints) + 2 * bool(self.layout.prefix) + published

    def rank(self, file_name: str) -> tuple[int, int, int, int]:
        """Return a rank, larger for a better fit: evidence, file name, few unknown leftovers, long prefix."""
        named = self.method.name != _BARE and self.method.name.replace("-", "") in re.sub(
            r"[\W_]", "", file_name.lower()
        )
        return self.evidence(file_name), int(named), -len(self.unexpected), len(self.layout.prefix)


def candidates(found: Any, methods: Sequence[Method] = METHODS) -> Iterator[Candidate]:
    """Yield a candidate for every layout whose entry is in the file."""
    seen: dict[str, Contents | None] = {}
    for method in methods:
        for layout in method.layouts:
            if layout.path not in seen:
                seen[layout.path] = _contents(found, layout.path)
            contents = seen[layout.path]
            if contents is not None:
                yield _candidate(method, layout, contents)


def bare_candidates(found: Any, method: Method) -> Iterator[Candidate]:
    """Yield the file as a bare encoder, which can come from any method, so any method may be named for it."""
    families = dict.fromkeys(layout.family for layout in method.layouts)
    bare = next(row for row in METHODS if row.name == _BARE)
    for layout in (
        Layout(one.path, required=one.required, family=family)
        for family in families
        for one in bare.layouts
        if family != "timm"  # whose networks have no common names
    ):
        contents = _contents(found, layout.path)
        if contents is not None:
            yield _candidate(method, layout, contents)


def _candidate(method: Method, layout: Layout, contents: Contents) -> Candidate:
    matches, hinted = (all(test(contents) for test in tests) for tests in (layout.required, layout.hints))
    network = layout.network if matches else None  # which is built only for files that may hold it
    shapes = {} if network is None else expected_timm_shapes(network)
    known = {*shapes, *(name.removesuffix("running_var") + COUNTER for name in shapes if name.endswith("running_var"))}
    belongs = {"vit": is_vit_key, "resnet": is_encoder_key, "timm": known.__contains__}[layout.family]
    encoder: dict[str, Tensor] = {}
    leftovers = []
    for name, tensor in contents.tensors.items():
        key = _renamed(name.removeprefix(layout.prefix), layout) if name.startswith(layout.prefix) else ""
        if belongs(key):
            encoder[key] = tensor
        else:
            leftovers.append(name)
    suspected = bool(layout.suspicions) and all(test(contents) for test in layout.suspicions)
    candidate = Candidate(method, layout, contents, encoder, leftovers, None, matches, hinted, suspected)
    if layout.family == "timm":
        if network is not None and encoder:
            candidate.architecture = network
            _compare(candidate, shapes)
        return candidate
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
    """Return whether the networks of the method have this stem and this number of stages."""
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
    tensors = state_dict_in(found, path)
    return Contents(tensors, entries) if tensors else None


def state_dict_in(found: Any, path: str) -> dict[str, Tensor]:
    """Return the named tensors of an entry of a file, without the parts of names that wrappers add."""
    for step in path.split("/") if path else ():
        found = found.get(step) if isinstance(found, Mapping) else None
    named = found.items() if isinstance(found, Mapping) else ()
    return _unwrapped({str(name): value for name, value in named if isinstance(value, Tensor)})


def _unwrapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the parts of names that wrappers add, unless two names would become equal."""
    names = {name: ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in tensors}
    if len(set(names.values())) < len(names):
        return tensors
    return {names[name]: value for name, value in tensors.items()}
