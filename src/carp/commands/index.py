"""`carp index`: an index of stored features, for `carp search`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carp.console.progress import Display
from carp.features.store import open_store
from carp.files.outputs import check_output_folder
from carp.similarity.faiss_library import load_faiss
from carp.similarity.index_folder import index_in, write_index
from carp.similarity.vector_index import build_index


@dataclass(frozen=True)
class Indexed:
    """An index that was written."""

    folder: Path
    images: int
    kind: str
    """`exact`, `ivf` or `hnsw`."""
    settings: dict[str, int]
    """The settings of an approximate index."""
    recall: float
    """Share of the ten nearest neighbours that it finds, measured on some of its own vectors; 1 if exact."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return {**vars(self), "folder": str(self.folder)}


def index(features: str | Path, *, out: str | Path | None = None, kind: str = "auto", quiet: bool = True) -> Indexed:
    """Build an index of stored features, and measure its recall.

    Args:
        features: A folder that `embed` wrote.
        out: Folder for the index. None is the sub-folder `index` of the features.
        kind: `exact`, `ivf` or `hnsw`; `auto` chooses by the number of images.
        quiet: Show no progress.

    Returns:
        The folder of the index, its kind and its measured recall.
    """
    load_faiss("an index")  # before the features are read
    store = open_store(Path(features))
    folder = Path(out) if out is not None else index_in(Path(features))
    check_output_folder(folder)
    with Display(quiet=quiet).counting("indexing", len(store.features)) as progress:
        made = build_index(store.features, kind, progress=progress)
    write_index(made, store, folder)
    return Indexed(folder, len(made), made.kind, made.settings, made.recall)
