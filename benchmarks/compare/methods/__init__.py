"""The methods, by name, and the ideas for CARP. Another one is a subclass of `Method` and one entry here."""

from benchmarks.compare.method import Method
from benchmarks.compare.methods.carp_ideas import (
    Collision,
    Memory,
    Recipe,
    SharpTeacher,
    SmallCrops,
    Spread,
    StrongSpread,
)
from benchmarks.compare.methods.carp_itself import CarpItself
from benchmarks.compare.methods.contrast import MoCo, SimCLR
from benchmarks.compare.methods.decorrelation import BarlowTwins, VICReg
from benchmarks.compare.methods.distillation import BYOL, DINO
from benchmarks.compare.methods.lightly_settings import LIGHTLY
from benchmarks.compare.methods.swapped_codes import SwAV
from carp.errors import ConfigError, nearest, received

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (CarpItself, SimCLR, SwAV, DINO, BYOL, BarlowTwins, VICReg, MoCo)
}

IDEAS: dict[str, type[Method]] = {
    idea.name: idea for idea in (Collision, SmallCrops, SharpTeacher, Spread, StrongSpread, Recipe, Memory)
}
KNOWN = METHODS | IDEAS | {method.name: method for method in LIGHTLY}


def find_method(name: str) -> type[Method]:
    """Return a method or an idea by its name."""
    if name not in KNOWN:
        raise ConfigError(
            f"there is no method {received(name)}.{nearest(name, KNOWN)} The methods are {', '.join(KNOWN)}."
        )
    return KNOWN[name]
