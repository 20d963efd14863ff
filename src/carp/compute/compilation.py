"""Compiles networks with torch.compile. What cannot be compiled is an error, never a silent fall-back to slow code."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from carp.errors import ConfigError

_VARIANTS = 64  # of a network: sizes of views and batches, training and evaluation, with and without gradients


def compile_networks(networks: Sequence[nn.Module], backend: str | Any = "inductor") -> None:
    """Compile modules in place, each as one graph; the names and values of their tensors do not change."""
    settings: Any = torch._dynamo.config
    settings.cache_size_limit = max(settings.cache_size_limit, _VARIANTS)  # newer versions also say recompile_limit
    for network in networks:
        network.compile(backend=backend, fullgraph=True)


@contextmanager
def compilation_explained(active: bool) -> Iterator[None]:
    """Turn errors of the compiler, which appear when a network is first used, into a `ConfigError`."""
    if not active:
        yield
        return
    try:
        yield
    except torch._dynamo.exc.TorchDynamoException as error:
        first, *_ = str(error).strip().split("\n\n")  # advice to developers follows
        reason = " ".join(first.split())[:300].rstrip(".") or type(error).__name__
        raise ConfigError(f"compile=true is not possible: {reason}. Use compile=false.") from error
