"""A search index on disk.

An index is a folder:

    vectors.faiss   the vectors, of unit length, in the format of faiss
    index.json      kind, settings, measured recall, the store that it was built from, digests; written last

The digests work as in a feature store (`files/manifest.py`).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from carp.errors import DataError
from carp.features.store import Store, is_store, open_store
from carp.files.atomic import is_unfinished, remove_unfinished, replacing
from carp.files.digests import damage_of
from carp.files.manifest import Manifest
from carp.files.verdicts import Checked, judge_complete
from carp.similarity.faiss_library import load_faiss
from carp.similarity.vector_index import NEIGHBOURS, Kind, VectorIndex

MANIFEST, VECTORS = "index.json", "vectors.faiss"
_AGAIN = "Run `carp index` again."
_MANIFEST = Manifest(MANIFEST, 1, _AGAIN, "index", "carp index")


@dataclass(frozen=True)
class _About:
    """The content of `index.json`."""

    kind: Kind
    settings: dict[str, int]
    recall: float
    store: str
    """Path of the feature store, relative to the folder of the index."""
    store_key: str
    vectors: int
    digests: dict[str, Any]
    """Digests of the vectors; only their size if a version without digests wrote the index."""
    has_digests: bool


def index_in(features: Path) -> Path:
    """Return the default folder of an index, inside the features that it is built from."""
    return features / "index"


def is_index(path: str | Path) -> bool:
    """Return whether a folder has an index, or the manifest of one whose vectors are missing."""
    folder = Path(path)
    return (folder / MANIFEST).is_file() and ((folder / VECTORS).is_file() or not is_store(folder))


def write_index(index: VectorIndex, store: Store, folder: Path) -> None:
    """Write the index of a store; an older index in the folder is replaced."""
    if folder.is_file():
        raise DataError(f"{folder} is a file. Give a folder for the index.")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    others = [path.name for path in found if path.name not in {MANIFEST, VECTORS} and not is_unfinished(path)]
    if others:
        raise DataError(f"{folder} contains other files ({others[0]}). Give an empty or a new folder for the index.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_unfinished(folder)
        (folder / MANIFEST).unlink(missing_ok=True)
        with replacing(folder / VECTORS) as beside:
            load_faiss("an index").write_index(index.faiss_index, str(beside))
        content = {
            "kind": index.kind,
            "settings": index.settings,
            f"recall@{NEIGHBOURS}": index.recall,
            "store": os.path.relpath(store.folder.resolve(), folder.resolve()),  # so that both can be moved together
            "store_key": store.origin.key(),
            "vectors": len(index),
            "bytes": (folder / VECTORS).stat().st_size,
        }
        _MANIFEST.write(folder, content, [VECTORS])
    except (OSError, RuntimeError) as error:  # faiss raises the latter
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise DataError(f"cannot write the index {folder}: {reason}. Give another folder with --out.") from error


def open_index(folder: Path) -> tuple[VectorIndex, Store]:
    """Open and verify an index and the store that it was built from, which must not have changed since."""
    about = _read(folder)
    store = open_store(Path(os.path.normpath(folder.resolve() / about.store)))
    if store.origin.key() != about.store_key or len(store.features) != about.vectors:
        raise DataError(f"the features {store.folder} have changed since the index {folder} was built. {_AGAIN}")
    _check_vectors(folder, about)
    try:
        index = load_faiss("an index").read_index(str(folder / VECTORS))
    except (OSError, RuntimeError) as error:
        raise DataError(f"cannot read {folder / VECTORS} ({type(error).__name__}). {_AGAIN}") from None
    if (index.ntotal, index.d) != store.features.shape:
        raise DataError(f"{folder / VECTORS} does not belong to {store.folder}. {_AGAIN}")
    return VectorIndex(about.kind, about.settings, about.recall, index), store


def check_index(folder: Path) -> Iterator[Checked]:
    """Verify every byte of an index, for `carp check`."""

    def read() -> tuple[bool, dict[str, Callable[[], object]]]:
        about = _read(folder)
        return about.has_digests, {VECTORS: lambda: _check_vectors(folder, about, everything=True)}

    return judge_complete(folder / MANIFEST, read)


def _read(folder: Path) -> _About:
    def parse(found: dict[str, Any]) -> _About:
        if found["kind"] not in get_args(Kind) or not isinstance(found["store"], str):
            raise ValueError("its values are not those of an index")
        return _About(
            kind=found["kind"],
            settings=found["settings"],
            recall=float(found[f"recall@{NEIGHBOURS}"]),
            store=found["store"],
            store_key=found["store_key"],
            vectors=found["vectors"],
            digests=found["files"].get(VECTORS) or {"bytes": found["bytes"], "chunk": 1, "sha256": []},
            has_digests=bool(found["files"]),
        )

    return _MANIFEST.read(folder, parse)


def _check_vectors(folder: Path, about: _About, *, everything: bool = False) -> None:
    if (found := damage_of(folder / VECTORS, about.digests, everything=everything)) is not None:
        raise DataError(f"{folder / VECTORS} is damaged: {found}. {_AGAIN}")
