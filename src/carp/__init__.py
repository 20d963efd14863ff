"""CARP: consistent assignment of views over random partitions.

The public names are imported on first use, so that `import carp` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from carp._version import __version__
from carp.compute.openmp import bound_spinning

if TYPE_CHECKING:
    from carp.commands.check_data import check_data
    from carp.commands.check_folder import FileCheck, FolderCheck, check_folder
    from carp.commands.embed import embed
    from carp.commands.evaluate import evaluate
    from carp.commands.export import Exported, export
    from carp.commands.train import train
    from carp.encoders.frozen_encoder import Encoder
    from carp.encoders.load import load
    from carp.evaluation.result import Result
    from carp.features.store import Store
    from carp.images.inspect.data_check import DataCheck
    from carp.model.loss import LossTerms, carp_loss, reference_loss
    from carp.model.partition import random_partition
    from carp.runs.run_folder import Run

bound_spinning()

_HOMES = {
    "DataCheck": "carp.images.inspect.data_check",
    "Encoder": "carp.encoders.frozen_encoder",
    "Exported": "carp.commands.export",
    "FileCheck": "carp.commands.check_folder",
    "FolderCheck": "carp.commands.check_folder",
    "LossTerms": "carp.model.loss",
    "Result": "carp.evaluation.result",
    "Run": "carp.runs.run_folder",
    "Store": "carp.features.store",
    "carp_loss": "carp.model.loss",
    "check_data": "carp.commands.check_data",
    "check_folder": "carp.commands.check_folder",
    "embed": "carp.commands.embed",
    "evaluate": "carp.commands.evaluate",
    "export": "carp.commands.export",
    "load": "carp.encoders.load",
    "random_partition": "carp.model.partition",
    "reference_loss": "carp.model.loss",
    "train": "carp.commands.train",
}

__all__ = [
    "DataCheck",
    "Encoder",
    "Exported",
    "FileCheck",
    "FolderCheck",
    "LossTerms",
    "Result",
    "Run",
    "Store",
    "__version__",
    "carp_loss",
    "check_data",
    "check_folder",
    "embed",
    "evaluate",
    "export",
    "load",
    "random_partition",
    "reference_loss",
    "train",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'carp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
