"""CARP: consistent assignment of views over random partitions.

Every command of the command line is a function here, with the same names and defaults. The public names are imported
on first use, so that `import carp` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from carp._version import __version__
from carp.compute.openmp import bound_spinning

if TYPE_CHECKING:
    from carp.advice.outcome import Advice
    from carp.commands.ablate import ablate
    from carp.commands.advise import advise
    from carp.commands.attack import Attacked, attack
    from carp.commands.check_data import check_data
    from carp.commands.check_folder import FileCheck, FolderCheck, check_folder
    from carp.commands.cluster import Clustered, cluster
    from carp.commands.datasets import datasets
    from carp.commands.demo import demo
    from carp.commands.doctor import doctor
    from carp.commands.duplicates import duplicates
    from carp.commands.embed import embed
    from carp.commands.evaluate import evaluate
    from carp.commands.evaluate_paper import EvaluatedPaper, evaluate_paper
    from carp.commands.explore import explore
    from carp.commands.export import Exported, export
    from carp.commands.import_run import import_run
    from carp.commands.index import Indexed, index
    from carp.commands.label import LabelledFiles, label
    from carp.commands.push import push
    from carp.commands.report_run import Report, report_run
    from carp.commands.search import search
    from carp.commands.table import table
    from carp.commands.train import train
    from carp.commands.views import views
    from carp.commands.weights import ListedWeights, WeightsFile, weights
    from carp.encoders.frozen_encoder import Encoder
    from carp.encoders.load import load
    from carp.errors import CarpError
    from carp.evaluation.result import Result
    from carp.features.store import Store
    from carp.images.inspect.data_check import DataCheck
    from carp.images.sources.paper.paper_datasets import ListedDataset
    from carp.integrations.lightning_callback import CarpCallback
    from carp.integrations.sklearn_transformer import CarpEncoder
    from carp.model.loss import LossTerms, carp_loss, reference_loss
    from carp.model.partition import random_partition
    from carp.readiness.examination import Examination
    from carp.report.tables.join import Table
    from carp.runs.run_folder import Run
    from carp.similarity.copies_found import CopiesFound
    from carp.similarity.matches import Found, Match
    from carp.studies.study import Study
    from carp.web.server import Explorer

bound_spinning()

_HOMES = {
    "Advice": "carp.advice.outcome",
    "Attacked": "carp.commands.attack",
    "CarpCallback": "carp.integrations.lightning_callback",
    "CarpEncoder": "carp.integrations.sklearn_transformer",
    "CarpError": "carp.errors",
    "Clustered": "carp.commands.cluster",
    "CopiesFound": "carp.similarity.copies_found",
    "DataCheck": "carp.images.inspect.data_check",
    "Encoder": "carp.encoders.frozen_encoder",
    "EvaluatedPaper": "carp.commands.evaluate_paper",
    "Examination": "carp.readiness.examination",
    "Explorer": "carp.web.server",
    "Exported": "carp.commands.export",
    "FileCheck": "carp.commands.check_folder",
    "FolderCheck": "carp.commands.check_folder",
    "Found": "carp.similarity.matches",
    "Indexed": "carp.commands.index",
    "LabelledFiles": "carp.commands.label",
    "ListedDataset": "carp.images.sources.paper.paper_datasets",
    "ListedWeights": "carp.commands.weights",
    "LossTerms": "carp.model.loss",
    "Match": "carp.similarity.matches",
    "Report": "carp.commands.report_run",
    "Result": "carp.evaluation.result",
    "Run": "carp.runs.run_folder",
    "Store": "carp.features.store",
    "Study": "carp.studies.study",
    "Table": "carp.report.tables.join",
    "WeightsFile": "carp.commands.weights",
    "ablate": "carp.commands.ablate",
    "advise": "carp.commands.advise",
    "attack": "carp.commands.attack",
    "carp_loss": "carp.model.loss",
    "check_data": "carp.commands.check_data",
    "check_folder": "carp.commands.check_folder",
    "cluster": "carp.commands.cluster",
    "datasets": "carp.commands.datasets",
    "demo": "carp.commands.demo",
    "doctor": "carp.commands.doctor",
    "duplicates": "carp.commands.duplicates",
    "embed": "carp.commands.embed",
    "evaluate": "carp.commands.evaluate",
    "evaluate_paper": "carp.commands.evaluate_paper",
    "explore": "carp.commands.explore",
    "export": "carp.commands.export",
    "import_run": "carp.commands.import_run",
    "index": "carp.commands.index",
    "label": "carp.commands.label",
    "load": "carp.encoders.load",
    "random_partition": "carp.model.partition",
    "reference_loss": "carp.model.loss",
    "push": "carp.commands.push",
    "report_run": "carp.commands.report_run",
    "search": "carp.commands.search",
    "table": "carp.commands.table",
    "train": "carp.commands.train",
    "views": "carp.commands.views",
    "weights": "carp.commands.weights",
}

__all__ = [
    "Advice",
    "Attacked",
    "CarpCallback",
    "CarpEncoder",
    "CarpError",
    "Clustered",
    "CopiesFound",
    "DataCheck",
    "Encoder",
    "EvaluatedPaper",
    "Examination",
    "Explorer",
    "Exported",
    "FileCheck",
    "FolderCheck",
    "Found",
    "Indexed",
    "LabelledFiles",
    "ListedDataset",
    "ListedWeights",
    "LossTerms",
    "Match",
    "Report",
    "Result",
    "Run",
    "Store",
    "Study",
    "Table",
    "WeightsFile",
    "__version__",
    "ablate",
    "advise",
    "attack",
    "carp_loss",
    "check_data",
    "check_folder",
    "cluster",
    "datasets",
    "demo",
    "doctor",
    "duplicates",
    "embed",
    "evaluate",
    "evaluate_paper",
    "explore",
    "export",
    "import_run",
    "index",
    "label",
    "load",
    "push",
    "random_partition",
    "reference_loss",
    "report_run",
    "search",
    "table",
    "train",
    "views",
    "weights",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'carp' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
