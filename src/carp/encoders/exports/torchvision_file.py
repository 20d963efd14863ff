"""A state dict of `torchvision.models.resnet50` (or another ResNet of torchvision) without its classifier."""

from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.same_network import torchvision_name, torchvision_network
from carp.encoders.read_export import MARK, METADATA, SIGNATURE
from carp.restricted.archive import pickle_contains
from carp.restricted.checkpoint_file import read_checkpoint


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Write the state dict; its description is in the metadata, which loaders ignore."""
    torchvision_name(exportable.module)
    state = OrderedDict((name, tensor.clone()) for name, tensor in exportable.module.state_dict().items())
    setattr(state, METADATA, OrderedDict({"": {"version": 1, MARK: exportable.about_text()}}))
    with path.open("wb") as file:  # PyTorch rejects some file names
        torch.save(state, file)


def reload(exportable: ExportableEncoder, path: Path) -> nn.Module:
    """Build torchvision's network and load the weights."""
    network = torchvision_network(torchvision_name(exportable.module))
    network.load_state_dict(read_checkpoint(path))
    return network.eval()


def is_carp_file(path: Path) -> bool:
    """Return whether the metadata contain CARP's mark; the file is searched, not loaded."""
    return pickle_contains(path, SIGNATURE)
