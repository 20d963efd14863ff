"""A pickle with detectron2's names (`res2.0.conv1.norm.weight`), which MoCo's converter introduced for C4 detection."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from carp.encoders.exports.exportable import ExportableEncoder
from carp.encoders.exports.same_network import torchvision_name, torchvision_network
from carp.encoders.foreign.architecture import COUNTER
from carp.encoders.read_export import MARK
from carp.files.regular import check_regular
from carp.restricted import Budget, Damaged, Refused
from carp.restricted.archive import map_file
from carp.restricted.arrays import CARP_ARRAYS
from carp.restricted.budget import VALUES
from carp.restricted.machine import Machine

_AUTHOR = "__author__"
_TO_DETECTRON2 = (
    (r"^(?=conv1|bn1)", "stem."),
    (r"^layer([1-4])", lambda match: f"res{int(match[1]) + 1}"),
    (r"bn([123])", r"conv\1.norm"),
    (r"downsample\.0", "shortcut"),
    (r"downsample\.1", "shortcut.norm"),
)  # applied in order


def detectron2_key(key: str) -> str:
    """Return detectron2's name of a tensor of a ResNet."""
    for pattern, replacement in _TO_DETECTRON2:
        key = re.sub(pattern, replacement, key)
    return key


def write(exportable: ExportableEncoder, path: Path) -> None:
    """Write the arrays, the entries that detectron2's reader needs, and CARP's mark."""
    torchvision_name(exportable.module)  # detectron2's C4 and FPN are built on these networks
    state = exportable.module.state_dict()
    arrays = {detectron2_key(name): tensor.numpy() for name, tensor in state.items() if not name.endswith(COUNTER)}
    content = {"model": arrays, _AUTHOR: "CARP", "matching_heuristics": True, MARK: exportable.about_text()}
    with path.open("wb") as file:
        _Pickler(file, protocol=4).dump(content)


def reload(exportable: ExportableEncoder, path: Path) -> nn.Module:
    """Load the arrays into torchvision's network, because detectron2 cannot be installed from PyPI."""
    network = torchvision_network(torchvision_name(exportable.module))
    arrays = _read(path)["model"]
    state: dict[str, Tensor] = {
        name: tensor if name.endswith(COUNTER) else torch.from_numpy(arrays.pop(detectron2_key(name)))
        for name, tensor in network.state_dict().items()
    }
    if arrays:
        raise KeyError(f"{next(iter(arrays))} is not a tensor of the network")
    network.load_state_dict(state)
    return network.eval()


def is_carp_file(path: Path) -> bool:
    """Return whether the pickle contains CARP's mark; no code in it is run."""
    try:
        content = _read(path)
    except (OSError, Refused, Damaged, ArithmeticError, LookupError, TypeError, ValueError, MemoryError):
        return False
    return isinstance(content, dict) and MARK in content


class _Pickler(pickle.Pickler):
    """Writes an array as the call `numpy.ndarray(shape, type, bytes)`.

    NumPy's own pickles name a module that does not exist in the older releases often used with detectron2.
    """

    def reducer_override(self, found: object) -> Any:
        if isinstance(found, np.ndarray):
            array: NDArray[Any] = np.ascontiguousarray(found)
            return np.ndarray, (array.shape, array.dtype.str, bytearray(array.tobytes()))
        return NotImplemented


def _read(path: Path) -> Any:
    size = check_regular(path)
    return Machine(map_file(path), CARP_ARRAYS, Budget(2 * size + VALUES)).run() if size else None
