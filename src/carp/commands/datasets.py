"""`carp datasets`: the datasets of the paper, which of them are in a folder, and how to get the rest."""

from pathlib import Path

from carp.errors import DataError
from carp.images.sources.paper.paper_datasets import DATASETS, ListedDataset


def datasets(root: str | Path | None = None) -> list[ListedDataset]:
    """List the datasets of the paper's evaluation, in the order of the paper.

    Args:
        root: A folder to search; each row then says whether the dataset is in it and can be read.

    Returns:
        One row per dataset.
    """
    if root is None:
        return [ListedDataset(row) for row in DATASETS]
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"--root {root} is not a folder. Give the folder that contains the datasets.")
    from carp.images.sources.paper.dataset_source import look  # decodes images, which the table alone does not need

    return [ListedDataset(row, look(row, folder)) for row in DATASETS]
