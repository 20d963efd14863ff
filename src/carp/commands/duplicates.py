"""`carp duplicates`: near-duplicate images, grouped for you to review. Nothing is deleted."""

import json
from pathlib import Path

from carp.console.progress import Display
from carp.encoders.take_features import images_and_features
from carp.errors import ConfigError, DataError
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.stored_images import StoredImages
from carp.files.atomic import write_atomic
from carp.files.outputs import check_output_folder
from carp.images.inspect.identical import first_identical
from carp.images.source import Openable
from carp.images.views.interpolation import Interpolation
from carp.report.pages.copies_page import write_copies_page
from carp.report.pages.remove_list import check_remove_list, write_remove_list
from carp.runs.epoch_argument import at_epoch
from carp.similarity.copies_found import CopiesFound
from carp.similarity.copy_groups import group_copies
from carp.similarity.faiss_library import load_faiss
from carp.similarity.near_copies import find_copies

PAGE, LIST = "duplicates.html", "duplicates.json"
FEATURES = "features"  # sub-folder


def duplicates(
    data: Openable,
    model: str | Path | None = None,
    *,
    out: str | Path = "duplicates",
    threshold: float | str = "auto",
    features: str | Path | None = None,
    branch: str = "teacher",
    epoch: int | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    remove_list: str | Path | None = None,
    quiet: bool = True,
) -> CopiesFound:
    """Group the near-duplicates among images, and write them as a page and as JSON. Nothing is ever deleted.

    Args:
        data: A folder of images or any other source (docs/data.md).
        model: A run folder, `RUN@25`, or weights: FILE, METHOD:FILE or a name (docs/weights.md). None is the stored
            `features`, or `lite0` if there are none.
        out: Folder for duplicates.html, duplicates.json, and the features unless `features` is given.
        threshold: Minimum similarity of copies, from 0 to 1; `auto` chooses it from the images (docs/search.md).
        features: Folder of the features of these images; they are extracted into it if it has none yet.
        branch: Encoder of a run: `teacher` or `student`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        interpolation: How images are resized: `bicubic` or `bilinear`. None is bicubic.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images per batch.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        remove_list: A .txt, .nul or .csv file that lists the files to remove if one image of every group is kept.
        quiet: Show no progress.

    Returns:
        The groups, the most certain first, and the threshold that was used.
    """
    model = at_epoch(model, epoch)
    options = FeatureOptions(
        layer=layer,
        size=size,
        resize=resize,
        interpolation=interpolation,
        precision=precision,
        batch_size=batch_size,
        root=root,
        download=download,
        device=device,
    )
    load_faiss("the search for near-duplicates")  # before minutes of encoding
    if remove_list is not None:
        check_remove_list(Path(remove_list))
    least, folder = _threshold(threshold), Path(out)
    check_output_folder(folder)
    stored = Path(features) if features is not None else folder / FEATURES
    display = Display(quiet=quiet)
    source, store = images_and_features(data, model, stored, branch=branch, options=options, display=display)
    with display.counting("comparing bytes", len(store.features)) as progress:
        firsts = first_identical(source, store.image_of_row(), progress)
    with display.counting("comparing features", len(store.features)) as progress:
        copies = find_copies(store.features, least, firsts=firsts, progress=progress)
    images = StoredImages(store, source)
    places = store.places_of({row for group in copies.groups for row in group})
    found = CopiesFound(
        name=source.name,
        images=len(store.features),
        threshold=copies.threshold.value,
        reason=copies.threshold.reason,
        groups=group_copies(copies, places.__getitem__, lambda row: images.fetch(row, places[row]), firsts),
        unreadable=len(store.unreadable),
    )
    write_copies_page(folder / PAGE, found, images)
    write_atomic(folder / LIST, json.dumps(found.as_dict(), indent=1))
    if remove_list is not None:
        _write(Path(remove_list), found)
    return found


def _write(path: Path, found: CopiesFound) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_remove_list(path, found)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another --remove-list.") from error


def _threshold(given: float | str) -> float | None:
    if given == "auto":
        return None
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise ConfigError(f"threshold must be auto or a similarity from 0 to 1, received {given}.")
    return value
