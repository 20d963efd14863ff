"""`carp datasets`: the datasets of the paper, which of them are in a folder, and how to get the rest."""

from pathlib import Path

from carp.images.sources.paper.paper_datasets import DATASETS, ListedDataset


def datasets(root: str | Path | None = None) -> list[ListedDataset]:
    """List the datasets of the paper's evaluation, in the order of the paper.

    Args:
        root: A folder to search; each row then shows whether the dataset is in it and can be read.

    Returns:
        One row per dataset.
    """
    if root is None:
        return [ListedDataset(row) for row in DATASETS]
    from carp.images.sources.paper.dataset_source import datasets_folder, look  # decodes images; the table needs none

    folder = datasets_folder(root)
    return [ListedDataset(row, look(row, folder)) for row in DATASETS]
