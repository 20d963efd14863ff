"""Derives the settings of a run from the options that the authors' script saved with its checkpoint.

The values that none of their options changes are our defaults: views of 224 and 96 pixels, LARS with momentum 0.9 and
trust 0.001, a learning rate that is scaled by batch / 256 at its start only.
"""

from collections.abc import Callable, Mapping
from typing import Any

# Setting → the options that it is computed from, and the computation
_RULES: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "epochs": (("epochs",), lambda epochs: epochs),
    "batch_size": (
        ("batch_size_per_gpu", "world_size", "gradient_accumulation_steps"),
        lambda size, processes, steps: size * processes * steps,
    ),
    "micro_batch": (
        ("batch_size_per_gpu", "world_size", "gradient_accumulation_steps"),
        lambda size, processes, steps: size * processes if steps > 1 else None,
    ),
    "seed": (("seed",), lambda seed: seed),
    "global_scale": (("global_crops_scale",), list),
    "local_scale": (("local_crops_scale",), list),
    "local_views": (("local_crops_number",), lambda number: number),
    "block_size": (("partition_size",), lambda size: size),
    "teacher_momentum": (("momentum_teacher",), lambda start: [start, 1.0]),
    "lr": (("lr", "min_lr"), lambda start, end: [start, end]),
    "warmup_epochs": (("warmup_epochs",), lambda epochs: epochs),
    "weight_decay": (("weight_decay", "weight_decay_end"), lambda start, end: [start, end]),
}


def settings_of_authors(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that the script's options determine, and the names of those that they do not.

    `reading: authors` stands for everything that the script does and the paper's text leaves open.
    """
    found: dict[str, Any] = {"reading": "authors"}
    missing = []
    for key, (options, make) in _RULES.items():
        try:
            found[key] = make(*(arguments[option] for option in options))
        except (KeyError, TypeError):  # the file may contain anything
            missing.append(key)
    return found, missing
