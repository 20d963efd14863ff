"""A safetensors file with the encoder's tensors and its description, for programs that build the network themselves."""

import json
from copy import deepcopy
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import nn

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.read_export import MARK
from carp.files.regular import check_regular


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Write the tensors; one entry of the metadata is the description as JSON."""
    tensors = {name: tensor.contiguous() for name, tensor in exportable.module.state_dict().items()}
    path.write_bytes(_in_order(save(tensors, metadata={"format": "pt", MARK: exportable.about_text()})))


def _in_order(content: bytes) -> bytes:
    """Sort the metadata, which the library writes in arbitrary order, so that equal exports are equal files."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def reload(exportable: ExportableEncoder, path: Path) -> nn.Module:
    """Load the weights into a copy of the network whose weights are zero."""
    network = deepcopy(exportable.module)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.zero_()
    network.load_state_dict(load_file(path))
    return network.eval()


def is_carp_file(path: Path) -> bool:
    """Return whether the metadata contain CARP's mark."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            return MARK in (file.metadata() or {})
    except (OSError, SafetensorError):
        return False
