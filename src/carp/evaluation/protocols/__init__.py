"""The protocols: one module each. They register themselves when they are imported, which `all_protocols` does."""

import pkgutil
from functools import cache
from importlib import import_module

from carp.errors import ConfigError, nearest
from carp.evaluation.protocol import REGISTRY, AnyProtocol


def all_protocols() -> list[type[AnyProtocol]]:
    """Return all protocols, in the order of help and tables."""
    _import_modules()
    return sorted(REGISTRY.values(), key=lambda protocol: (protocol.position, protocol.name))


def find_protocol(name: str) -> type[AnyProtocol]:
    """Return the protocol with this name; a misspelt one raises a `ConfigError` that suggests the nearest."""
    names = [protocol.name for protocol in all_protocols()]
    if name not in names:
        raise ConfigError(f"there is no protocol '{name}'.{nearest(name, names)} Protocols: {', '.join(names)}.")
    return REGISTRY[name]


def protocol_of_result(name: str) -> type[AnyProtocol] | None:
    """Return the protocol that a result file names, possibly by a former name; None if this version lacks it."""
    return next((protocol for protocol in all_protocols() if name in (protocol.name, *protocol.former_names)), None)


@cache
def _import_modules() -> None:
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
