"""Complete training checkpoints of CARP's authors: student and teacher with their heads, and LARS's momentum.

Their layout (https://github.com/sthalles/carp, main_carp.py): `student` and `teacher` are state dicts with
torchvision's ResNet below `backbone.`, the projector below `head.mlp.` and prototypes with weight norm below
`head.last_layer.`; `optimizer` numbers the parameters, first those with weight decay, then biases and norms; `epoch` is
the number of finished epochs; `args` are the options of the script. The projector has the same layers as ours. A
prototype is the direction of a row of `weight_v`, because `weight_g` is 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carp.config import ModelSettings, resolve_part
from carp.encoders.foreign.architecture import COUNTER, Architecture, timm_resnet
from carp.encoders.foreign.candidate import state_dict_in
from carp.encoders.foreign.recognise import own_copies, read_foreign
from carp.encoders.foreign.refusal import few
from carp.errors import CheckpointError
from carp.model.branch import Branch
from carp.restricted.checkpoint_file import read_checkpoint, refuse_claims
from carp.restricted.objects import Arguments

METHOD = "carp"  # its row in the table of methods
BRANCHES = ("student", "teacher")
_DIRECTIONS, _LENGTHS = (
    ("weight_v", "parametrizations.weight.original1"),
    ("weight_g", "parametrizations.weight.original0"),
)
_BUFFERS = ("running_mean", "running_var", COUNTER)
_SAME_LENGTH = 1e-4
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class AuthorsCheckpoint:
    """The content of a checkpoint; tensors have the names that `Branch` gives them."""

    path: Path
    model_settings: dict[str, Any]
    """Settings of the encoder, the projector and the prototypes, inferred from the shapes of the tensors."""
    branches: dict[str, Tensors]
    """Student and teacher."""
    moments: Tensors
    """LARS's momentum by the names of the student's parameters; empty if the file has none that fits."""
    no_moments: str
    """Why there are none."""
    epoch: int | None
    """Finished epochs."""
    arguments: dict[str, Any]
    """Options of the authors' script."""


def read_authors(path: str | Path) -> AuthorsCheckpoint:
    """Read a whole checkpoint of the authors; nothing in it is executed."""
    path = Path(path)
    student, teacher = (read_branch(path, name) for name in BRANCHES)
    if student.settings != teacher.settings:
        raise CheckpointError(f"{path} cannot be used: its student and its teacher are different networks.")
    found = read_checkpoint(path)
    moments, problem = _moments(found.get("optimizer"), student)
    epoch, arguments = found.get("epoch"), found.get("args")
    return AuthorsCheckpoint(
        path,
        student.settings,
        {"student": student.tensors, "teacher": teacher.tensors},
        own_copies(path, moments),
        problem,
        epoch if type(epoch) is int and epoch >= 0 else None,
        arguments.values if isinstance(arguments, Arguments) else {},
    )


@dataclass(frozen=True)
class AuthorsBranch:
    """One branch of a checkpoint."""

    settings: dict[str, Any]
    tensors: Tensors
    parameters: dict[str, tuple[str, tuple[int, ...]]]
    """Our name and the shape of every parameter, by the name in the file and in its order. The name is empty
    for a parameter that we do not have."""

    def build(self) -> Branch:
        """Build the branch with its weights."""
        settings = {**self.settings, "block_size": self.settings["num_prototypes"]}
        branch = Branch(resolve_part(ModelSettings, settings))
        branch.load_state_dict(self.tensors)
        return branch


def read_branch(path: Path, branch: str) -> AuthorsBranch:
    """Read the encoder, the projector and the prototypes of one branch."""
    weights = read_foreign(path, METHOD, branch)
    architecture = weights.architecture
    if not isinstance(architecture, Architecture) or architecture.stem != 64:
        raise CheckpointError(
            f"{path} cannot be read completely: its encoder, {architecture}, is not a ResNet that timm builds."
        )
    state = state_dict_in(read_checkpoint(path), branch)
    refuse_claims(path, state.values(), "Download it again.")
    head = {name.removeprefix("head."): t for name, t in state.items() if name.startswith("head.")}
    projector, sizes = _projector(path, head)
    directions = _directions(path, head, sizes["embedding"])
    counters = {n.removeprefix("backbone."): t for n, t in state.items() if n.endswith(COUNTER)}
    encoder = {**weights.tensors, **{n: _counter(counters, n) for n in _counters_of(weights.tensors)}}
    tensors = {
        **{f"encoder.{name}": tensor for name, tensor in encoder.items()},
        **{f"projector.layers.{name}": tensor for name, tensor in projector.items()},
        "assigner.directions_KD": directions,
    }
    name, options = timm_resnet(architecture)
    settings = {
        "encoder": name,
        "encoder_options": options,
        "stem": "encoder",
        **sizes,
        "num_prototypes": len(directions),
    }
    parameters = {n: (_our_name(n), tuple(t.shape)) for n, t in state.items() if not n.endswith(_BUFFERS)}
    return AuthorsBranch(settings, tensors, parameters)


def _projector(path: Path, head: Mapping[str, Tensor]) -> tuple[Tensors, dict[str, int]]:
    """Return the tensors of the projector and its sizes: Linear–BN–GELU, Linear–BN–GELU, Linear."""
    mlp = {name.removeprefix("mlp."): tensor for name, tensor in head.items() if name.startswith("mlp.")}
    linear, norm = ("weight", "bias"), ("weight", "bias", "running_mean", "running_var")
    needed = [
        f"{i}.{part}" for i, parts in ((0, linear), (1, norm), (3, linear), (4, norm), (6, linear)) for part in parts
    ]
    missing = [f"head.mlp.{name}" for name in needed if name not in mlp]
    more = [f"head.mlp.{name}" for name in mlp if name not in needed and not name.endswith(COUNTER)]
    if missing or more:
        what = f"it lacks {few(missing)}" if missing else f"it also has {few(more)}"
        raise CheckpointError(
            f"{path} has no projector that CARP can use: {what}. CARP expects three linear layers, the first two with "
            "batch norm (use_bn_in_head)."
        )
    (hidden, features), (embedding, _) = ((*mlp[name].shape, 0, 0)[:2] for name in ("0.weight", "6.weight"))
    shapes = {
        "0.weight": (hidden, features),
        "3.weight": (hidden, hidden),
        "6.weight": (embedding, hidden),
        "6.bias": (embedding,),
    }
    for name in needed:
        expected = shapes.get(name, (hidden,))
        if tuple(mlp[name].shape) != expected or not mlp[name].is_floating_point():
            found = list(mlp[name].shape)
            raise CheckpointError(
                f"{path} has no projector that CARP can use: head.mlp.{name} is {found}, expected {list(expected)}."
            )
    tensors = own_copies(path, {name: mlp[name] for name in needed})
    tensors |= {f"{i}.{COUNTER}": _counter(mlp, f"{i}.{COUNTER}") for i in (1, 4)}
    return tensors, {"projector_hidden": hidden, "embedding": embedding}


def _directions(path: Path, head: Mapping[str, Tensor], embedding: int) -> Tensor:
    """Return the directions of the prototypes [K, D]."""
    last = {name.removeprefix("last_layer."): t for name, t in head.items() if name.startswith("last_layer.")}
    directions = next((last[name] for name in _DIRECTIONS if name in last), None)
    lengths = next((last[name] for name in _LENGTHS if name in last), None)
    if directions is None or directions.ndim != 2 or directions.shape[1] != embedding or not len(directions):
        shape = "missing" if directions is None else str(list(directions.shape))
        raise CheckpointError(
            f"{path} has no prototypes that CARP can use: head.last_layer.weight_v is {shape}, expected "
            f"[K, {embedding}]."
        )
    if lengths is not None and not bool(((lengths.float() - 1).abs() <= _SAME_LENGTH).all()):
        raise CheckpointError(
            f"{path} cannot be used: its prototypes have different lengths (weight_g, norm_last_layer false), but "
            "those of CARP have length 1."
        )
    return own_copies(path, {"head.last_layer.weight_v": directions})["head.last_layer.weight_v"]


def _moments(optimiser: Any, student: AuthorsBranch) -> tuple[Tensors, str]:
    """Return LARS's momentum by our names, or why there is none."""
    if not isinstance(optimiser, Mapping) or not isinstance(optimiser.get("state"), Mapping):
        return {}, "the file has no state of the optimiser"
    # Their groups: matrices and filters, then biases and norms, each in the order of the network
    by_group: tuple[list[str], list[str]] = ([], [])
    for name, (_, shape) in student.parameters.items():
        by_group[name.endswith(".bias") or len(shape) == 1].append(name)
    groups, state = optimiser.get("param_groups"), optimiser["state"]
    numbers = [_numbers(group) for group in groups] if isinstance(groups, list) else []
    for names in (by_group[0], [name for name in by_group[0] if not name.endswith(_LENGTHS)]):
        if [len(group) for group in numbers] == [len(names), len(by_group[1])]:
            break
    else:
        return {}, "the parameters of the optimiser are not those of the student"
    moments: Tensors = {}
    for number, name in zip([*numbers[0], *numbers[1]], [*names, *by_group[1]], strict=True):
        ours, shape = student.parameters[name]
        moment = state[number].get("mu") if isinstance(state.get(number), Mapping) else None
        if not isinstance(moment, Tensor) or tuple(moment.shape) != shape:
            return {}, f"the optimiser has no momentum for {name}"
        if ours:
            moments[ours] = moment
    return moments, ""


def _numbers(group: Any) -> list[int]:
    """Return the numbers of the parameters in a group of the optimiser."""
    params = group.get("params") if isinstance(group, Mapping) else None
    return [n for n in params if type(n) is int] if isinstance(params, list) else []


def _our_name(name: str) -> str:
    """Return the name in `Branch` of one of their parameters; empty if `Branch` does not have it."""
    if name.startswith("backbone."):
        return f"encoder.{name.removeprefix('backbone.')}"
    if name.startswith("head.mlp."):
        return f"projector.layers.{name.removeprefix('head.mlp.')}"
    return "assigner.directions_KD" if name.endswith(_DIRECTIONS) else ""


def _counters_of(encoder: Tensors) -> list[str]:
    return [name.removesuffix("running_var") + COUNTER for name in encoder if name.endswith("running_var")]


def _counter(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return how many batches a batch norm has counted; 0 if the file does not have it."""
    found = tensors.get(name)
    return torch.tensor(int(found) if found is not None and found.numel() == 1 else 0)
