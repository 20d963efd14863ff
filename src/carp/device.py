"""Which device to use."""

import torch

from carp.errors import ConfigError


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA, then MPS, then the CPU; anything else is a torch device that must exist here."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{name}' cannot be used here: {reason} Use device=auto.") from error
    return device
