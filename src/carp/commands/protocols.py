"""The protocols by name: where their functions are, what they are given, and which options they have no use for.

Nothing heavy is imported here, so that `--help` and the names of settings are there at once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from carp.errors import ConfigError, nearest
from carp.evaluation.protocols import check_names
from carp.evaluation.signatures import Setting, read_settings

ALL = "all"
_CROPS = "linear"  # trains on random crops of the images, or on stored features
_USUAL = (None, False, "encoder", "fp32")  # options that were not given


@dataclass(frozen=True)
class Protocol:
    """A function whose keyword arguments are the settings."""

    functions: tuple[str, ...]
    """`module:name`; the first is the protocol, others only have settings of their own."""
    takes: Literal["features", "images", "boxes"] = "features"
    """Stored features with labels; images in their own sizes, with their names; images with boxes."""
    several_labels: bool = False
    """Whether an image may have several labels."""

    def load(self) -> Callable[..., Any]:
        """The function."""
        module, _, name = self.functions[0].partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

    def settings(self) -> dict[str, Setting]:
        """What can be set, read from the source without importing it."""
        places = (function.partition(":") for function in self.functions)
        return {name: setting for module, _, found in places for name, setting in read_settings(module, found).items()}


PROTOCOLS = {
    "knn": Protocol(("carp.evaluation.knn:knn",)),
    "kmeans": Protocol(("carp.evaluation.kmeans:kmeans",)),
    "linear": Protocol(("carp.evaluation.linear.probe:linear_probe",)),
    "few-shot": Protocol(("carp.evaluation.few_shot:few_shot",), several_labels=True),
    "retrieval": Protocol(("carp.commands.ranked:retrieve",), "images"),
    "copies": Protocol(("carp.commands.ranked:find_copies",), "images"),
    "detection": Protocol(
        ("carp.evaluation.detection.trials:detection", "carp.commands.detection:evaluate_detection"), "boxes"
    ),
}
OF_ALL = tuple(name for name, protocol in PROTOCOLS.items() if protocol.takes == "features")
NAMES = (*PROTOCOLS, ALL)


def find_protocol(name: str) -> Protocol:
    """The protocol of a name."""
    if name == ALL:
        raise ConfigError("'all' is for the command line: in Python evaluate one protocol at a time.")
    check_protocol(name)
    return PROTOCOLS[name]


def check_protocol(name: str) -> None:
    """Raise unless there is a protocol of this name."""
    if name not in NAMES:
        raise ConfigError(f"there is no protocol '{name}'.{nearest(name, NAMES)} Protocols: {', '.join(NAMES)}.")


def check_setting_names(name: str, given: Collection[str]) -> None:
    """Raise if a setting is given that a protocol, or `all`, does not have."""
    if name != ALL:
        check_names(name, given, PROTOCOLS[name].settings())
    elif given:
        raise ConfigError(f"'all' takes no settings, received {min(given)}: give them to one protocol.")


def check_options(name: str, *, cached: bool, test: object, features: Mapping[str, object]) -> None:
    """Refuse an option that a protocol would leave aside.

    Args:
        name: The protocol, or `all`.
        cached: Whether stored features take the place of random crops.
        test: The test images, if some were given.
        features: Options that say how features are made, with their values.
    """
    if cached and name not in (_CROPS, ALL):
        raise ConfigError(
            f"--cached is for {_CROPS}, which otherwise trains on random crops; {name} has no such choice."
        )
    takes = "features" if name == ALL else PROTOCOLS[name].takes
    given = {option for option, value in features.items() if value not in _USUAL}
    if takes == "images":
        _check_own_sizes(name, test, given)
    elif takes == "boxes" and given:
        if given & {"size", "resize"}:
            raise ConfigError(f"{name} has its own sizes of images: write sizes=[480] and test_size=800.")
        option = min(given).replace("_", "-")
        raise ConfigError(f"{name} trains the whole encoder on images with boxes: it has no --{option}, leave it out.")


def _check_own_sizes(name: str, test: object, given: set[str]) -> None:
    if test is not None:
        raise ConfigError(f"{name} has no test images, received {test}: see docs/protocols.md for its settings.")
    if given & {"size", "resize", "precision"}:
        setting = "side=320 for the square" if name == "copies" else "max_side=224 for the longer side"
        raise ConfigError(
            f"{name} has its own rule for the size of images and computes in fp32: --size, --resize and --precision "
            f"have no meaning there. Write {setting}."
        )
