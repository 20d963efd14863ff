"""The paper's datasets for search: `dataset:roxford5k`, `dataset:rparis6k` and `dataset:copydays`.

Below the root, revisited Oxford and Paris are a folder NAME/jpg and NAME/gnd_NAME.pkl, as the script of their authors
lays them out. Copydays is a folder with `original` and `strong`, and possibly `jpegqual` and `crops`. They have no
splits and no classes: what is relevant for a query is in the ground truth, or in the names of the copies.
"""

from pathlib import Path

from carp.errors import DataError
from carp.images.source import Openable, Opening, Source
from carp.images.sources.folder import FolderSource
from carp.images.sources.paper.paper_datasets import PREFIX, Dataset, find

_IMAGES = "jpg"  # sub-folder


def ranked_set(data: Openable) -> Dataset | None:
    """Return the row of `dataset:NAME` if it is a dataset for search; None for anything else."""
    row = find(data) if isinstance(data, str) and data.startswith(PREFIX) else None
    return row if row is not None and row.is_ranked else None


def open_ranked(row: Dataset, root: Path, how: Opening) -> FolderSource:
    """Return all images of a dataset for search; an error says which part is missing and how to get it."""
    folder = image_folder(row, root)
    if folder is None:
        raise _missing(row, root, root / row.marker)
    if row.truth:
        ground_truth_file(row, folder)
    else:
        for part in (row.train.word, row.test.word):
            if not (folder / part).is_dir():
                raise _missing(row, root, folder / part)
    source = FolderSource(folder, index=how.index, progress=how.progress)
    source.name, source.classes = row.source(""), ()  # sub-folders are not classes
    source.label_remedy = f"it is for `carp eval {row.protocols[0]}`"
    return source


def folder_of(source: Source) -> Path:
    """Return the folder of an opened dataset for search."""
    assert isinstance(source, FolderSource), "open_ranked opened it"
    return source.root


def image_folder(row: Dataset, root: Path) -> Path | None:
    """Return the folder of the images below `root`; None without any."""
    places = (root / row.name / _IMAGES, root / row.name) if row.truth else (root / row.name,)
    return next((place for place in places if place.is_dir()), None)


def ground_truth_file(row: Dataset, folder: Path) -> Path:
    """Return the published ground truth of the images in `folder`: next to the folder, or in it."""
    places = [place / row.truth for place in (folder.parent, folder)]
    for place in places:
        if place.is_file():
            return place
    wanted = places[0 if folder.name == _IMAGES else 1]
    raise DataError(f"{row.source('')} has no ground truth: there is no file {wanted}. Get it from {row.truth_at}.")


def _missing(row: Dataset, root: Path, folder: Path) -> DataError:
    how = row.how.replace("ROOT", str(root))
    return DataError(f"{row.source('')} is not in {root}: there is no folder {folder}. To get it, {how}.")
