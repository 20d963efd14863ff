"""Checks whether a run fits into memory and, if not, which settings would make it fit."""

import torch

from carp.compute import distributed
from carp.compute.device import available_memory
from carp.config import Config
from carp.console.quantities import in_bytes
from carp.errors import ConfigError
from carp.training.planning.estimate import Estimate, estimate

# The lowest value that advice suggests; if two settings save about the same, the earlier one is suggested.
# micro_batch comes first because it changes no result.
_LEAST = {
    "micro_batch": 2,
    "num_prototypes": 256,
    "projector_hidden": 64,
    "embedding": 16,
    "global_size": 32,
    "local_size": 32,
    "local_views": 0,
    "batch_size": 2,
}
ROOM = 0.7  # of the free memory may be filled; the rest is for the data loader and for what an estimate misses
_MOST_NAMED = 3  # settings in one piece of advice
_WORTH_NAMING = 0.1  # of the memory: what lowering a setting must save
_AS_GOOD = 0.95  # of the most that any setting saves


def memory_for_training(device: torch.device) -> int:
    """Return the bytes that this process may use on the device; processes on one machine share its memory."""
    return available_memory(device) // (distributed.processes_here() if device.type == "cpu" else 1)


def check_memory(config: Config, device: torch.device) -> None:
    """Raise unless the estimated memory of a run is free."""
    if problem := memory_problem(config, estimate(config), memory_for_training(device)):
        raise ConfigError(problem)


def memory_problem(config: Config, needs: Estimate, free: int) -> str | None:
    """Describe what does not fit and which settings would; None if everything fits."""
    if needs.total_bytes <= free:
        return None
    need = f"training needs about {in_bytes(needs.total_bytes)} of memory, but only {in_bytes(free)} is free"
    return f"{need}: {_advice(config, int(ROOM * free))}"


def _advice(config: Config, room: int) -> str:
    """Name the settings that need most of the memory, each halved until the run fits."""
    named: dict[str, int] = {}
    while len(named) < _MOST_NAMED and (key := _dominant(config)) is not None:
        values = _lower_values(config, key)
        fitting = next((value for value in values if _total(config, key, value) <= room), None)
        named[key] = values[-1] if fitting is None else fitting
        config = _with(config, key, named[key])
        if fitting is not None:
            return f"set {' '.join(f'{name}={value}' for name, value in named.items())}."
    return "choose a smaller encoder, or a machine with more memory."


def _dominant(config: Config) -> str | None:
    """Find the setting that saves most at its lowest value; None if none saves enough."""
    now = estimate(config).total_bytes
    totals = {key: _total(config, key, values[-1]) for key in _LEAST if (values := _lower_values(config, key))}
    most = max((now - total for total in totals.values()), default=0)
    if most < _WORTH_NAMING * now:
        return None
    return next(key for key, total in totals.items() if now - total >= _AS_GOOD * most)


def _lower_values(config: Config, key: str) -> list[int]:
    """Halve a setting repeatedly down to its lowest value; only values that fit the other settings."""
    least, step = _LEAST[key], 1
    now = value = int(getattr(config, key) or (config.batch_size if key == "micro_batch" else 0))
    if key == "num_prototypes":
        step = config.shards * config.block_size
        least = -(-max(least, step) // step) * step
    values = []
    while (value := value // 2 // step * step) > least:
        values.append(value)
    if now > least:
        values.append(least)
    return [v for v in values if key != "micro_batch" or config.batch_size % v != 1]


def _with(config: Config, key: str, value: int) -> Config:
    changes = {key: value}
    if key == "batch_size" and config.micro_batch:
        changes["micro_batch"] = min(config.micro_batch, value)
    return config.model_copy(update=changes)


def _total(config: Config, key: str, value: int) -> int:
    return estimate(_with(config, key, value)).total_bytes
