"""Open images, wherever they are, as a `Source`. No kind of source is named here: each one declares what it claims."""

import os
from pathlib import Path

from carp.console.addresses import as_local, is_address, public, without_secrets
from carp.console.progress import Display
from carp.errors import DataError, nearest
from carp.images.decoding.image_formats import SUFFIXES
from carp.images.source import Found, Openable, Opening, Source, all_kinds, as_path, is_text, kinds_by_word, silent
from carp.images.sources.shard_files import is_pattern

AUTO = "auto"
_ARCHIVES = frozenset({".zip", ".gz", ".bz2", ".xz", ".7z", ".rar"})


def open_source(
    data: Openable,
    *,
    kind: str = AUTO,
    root: str | Path | None = None,
    download: bool = False,
    index: Path | None = None,
    progress: Found = silent,
    cache_gb: float | None = None,
) -> Source:
    """Open images, wherever they are.

    A source is returned as it is. For other data, the kind is the first of these: the one that `kind` names; the prefix
    of `KIND:REST`, unless a file has that name; the first that claims the data, in the order of `Source.claim_order`.

    Args:
        data: A folder, a list of paths (.txt, .csv, .tsv), tar shards or Parquet files (one, a folder of them, a glob,
            a range like `a-{000..009}.tar`), the address of a list, of shards or of Parquet files (`s3://`, `gs://`,
            `https://`, `hf://datasets/OWNER/NAME`), a folder of `Dataset.save_to_disk`, `torchvision:NAME`,
            `dataset:NAME:SPLIT`, `embedded:NAME`, an object of Hugging Face `datasets`, an image array
            [N, H, W, 3], a map-style dataset, a sequence of images, or an object with `fetch` and `place`.
        kind: The kind of source; `auto` infers it from the data.
        root: Folder of datasets, for `torchvision:` and `dataset:`.
        download: Whether torchvision may download what is missing.
        index: Folder of the indices that `Source.keep_index` wrote.
        progress: Called with (images found so far, 0) while an index is built.
        cache_gb: Gigabytes of remote shards on the local disk; by default CARP_CACHE_GB, or 50.
    """
    if isinstance(data, Source):
        return data
    how = Opening(None if root is None else Path(root).expanduser(), download, index, progress, cache_gb)
    if not is_text(data):
        return _claiming(data).open(data, how)
    word, rest = split_kind(str(data), kind)
    rest = as_local(rest)
    try:
        return (_claiming(rest) if word == AUTO else _named(word)).open(rest, how)
    except OSError as error:  # a folder that may not be listed, a name that is too long, …
        raise DataError(
            f"cannot open {without_secrets(rest)}: {error.strerror or error}. Check the path and its permissions."
        ) from error


def open_images(
    data: Openable,
    display: Display,
    *,
    kind: str = AUTO,
    root: str | Path | None = None,
    download: bool = False,
    index: Path | None = None,
    cache_gb: float | None = None,
) -> Source:
    """Do the same for a command: show progress while images are found, and warn about skipped files."""
    with display.counting("finding images", None) as progress:
        source = open_source(
            data, kind=kind, root=root, download=download, index=index, progress=progress, cache_gb=cache_gb
        )
    for note in source.notes:
        display.warn_once(note)
    return source


def check_exists(text: str) -> None:
    """Raise the error of `open_source` for a path that does not exist, before anything slow is imported or computed.

    Prefixes (`dataset:pets`) and patterns are left to `open_source`.
    """
    if ":" not in text and not is_pattern(text) and not as_path(text).exists():
        raise DataError(_unclaimed(text))


def split_kind(text: str, kind: str = AUTO) -> tuple[str, str]:
    """Return the kind and the rest of `KIND:REST`; the given kind and the text itself where no kind is a prefix."""
    prefix, colon, rest = text.partition(":")
    if not colon or prefix not in kinds_by_word() or os.path.exists(text):  # noqa: PTH110 - also for names that are too long
        return kind, text
    if kind not in {AUTO, prefix}:
        raise DataError(
            f"source is '{kind}', but the data is given as {text}. Set source=auto, or leave out the prefix."
        )
    return prefix, rest


def _named(word: str) -> type[Source]:
    kinds = kinds_by_word()
    if word not in kinds:
        every = [AUTO, *sorted(kinds)]
        raise DataError(f"there is no kind of source '{word}'.{nearest(word, every)} Kinds: {', '.join(every)}.")
    return kinds[word]


def _claiming(data: object) -> type[Source]:
    for kind in all_kinds():
        if kind.claims(data):
            return kind
    if is_text(data):
        raise DataError(_unclaimed(str(data)))
    raise DataError(
        f"cannot read images from a {type(data).__name__}: give a path, an array [N, H, W, 3], or a dataset with "
        "a length and integer indexing."
    )


def _unclaimed(text: str) -> str:
    """Return what is wrong with a path that no kind claims, and what to give instead."""
    if is_address(text):
        return (
            f"cannot infer the kind of {public(text)}: give tar shards (.tar), Parquet files (.parquet), a folder of "
            "either, or a list (.txt, .csv, .tsv); or set source=KIND. Remote folders of loose images cannot be read."
        )
    path = as_path(text)
    if path.is_file():
        return f"{text} is a file, {_instead_of(path)}."
    if path.exists():
        return f"{text} is a pipe, a socket or a device: give a folder of images, or a regular file."
    if is_pattern(text):
        return f"cannot infer the kind of {text}: give names with a suffix such as .tar, or set source=KIND."
    kinds = kinds_by_word()
    prefix, colon, rest = text.partition(":")
    examples = [kind.example for kind in kinds.values() if kind.example][::-1]  # the kind that claims most comes first
    close = nearest(prefix, kinds).replace("'?", f":{rest}'?") if colon else nearest(text, examples)
    return f"there is no folder {text}.{close} Give {', '.join(examples[:-1])} or {examples[-1]}."


def _instead_of(file: Path) -> str:
    """Return what to give instead of a file that is not a source."""
    suffix = file.suffix.lower()
    if suffix in SUFFIXES:
        return f"one image: give the folder that holds the images, e.g. {file.parent}"
    if suffix in _ARCHIVES:
        return "an archive: unpack it and give the folder of the images"
    kinds = [word for word, kind in kinds_by_word().items() if kind.suffixes]
    return f"not a folder: give a folder of images, or name its kind with KIND:FILE ({', '.join(kinds)})"
