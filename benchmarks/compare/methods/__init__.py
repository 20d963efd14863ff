"""The methods, by name. Another method is a subclass of `Method` and one entry here."""

from benchmarks.compare.method import Method
from benchmarks.compare.methods.carp_itself import CarpItself
from benchmarks.compare.methods.contrast import MoCo, SimCLR
from benchmarks.compare.methods.decorrelation import BarlowTwins, VICReg
from benchmarks.compare.methods.distillation import BYOL, DINO
from benchmarks.compare.methods.swapped_codes import SwAV
from carp.errors import ConfigError, nearest, received

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (CarpItself, SimCLR, SwAV, DINO, BYOL, BarlowTwins, VICReg, MoCo)
}


def find_method(name: str) -> type[Method]:
    """Return a method by its name."""
    if name not in METHODS:
        raise ConfigError(
            f"there is no method {received(name)}.{nearest(name, METHODS)} The methods are {', '.join(METHODS)}."
        )
    return METHODS[name]
