"""`carp label`: predict the labels of all images from a few labelled ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carp.console.progress import Display
from carp.encoders.load import encoder_of
from carp.encoders.take_features import images_and_features
from carp.errors import ConfigError, DataError
from carp.exploration.known_labels import KnownLabels, known_labels
from carp.exploration.label_advice import doubtful_labels, suggest_images
from carp.exploration.label_prediction import LabelPrediction, predict_labels
from carp.features.extract import Features, extract
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.store import Store
from carp.features.stored_images import StoredImages
from carp.features.tabular import write_columns
from carp.files.outputs import check_output_folder
from carp.images.decoding.decode import pixel_limit
from carp.images.open_source import open_images
from carp.images.source import Openable
from carp.images.views.interpolation import Interpolation
from carp.report.pages.labels_page import Contradicted, LabelledImages, write_labels_page
from carp.runs.epoch_argument import at_epoch
from carp.similarity.faiss_library import load_faiss

TABLE, NEXT, DOUBTFUL, PAGE = "labels.csv", "suggestions.csv", "doubtful.csv", "labels.html"
FEATURES = "features"  # sub-folder


@dataclass(frozen=True)
class LabelledFiles:
    """What `label` predicted and wrote.

    Attributes:
        folder: Where the files are.
        places: Every image.
        labels: Its label: the one that was given, otherwise the predicted one.
        certainty: Probability of the prediction; 1 for a given label.
        given: How many labels were given.
        accuracy: Share of held-out labels that were predicted correctly; None if none could be held out.
        method: How labels were predicted, in words.
        suggestions: The images whose labels would help most, the most helpful first.
        doubtful: Images whose given label looks wrong, the most suspicious first.
    """

    folder: Path
    places: list[str]
    labels: list[str]
    certainty: NDArray[np.float64]
    given: int
    accuracy: float | None
    method: str
    suggestions: list[str]
    doubtful: list[str]


def label(
    data: Openable,
    labels: Openable,
    model: str | Path | None = None,
    *,
    out: str | Path = "labels",
    suggest: int = 20,
    seed: int = 0,
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
    quiet: bool = True,
) -> LabelledFiles:
    """Predict the labels of all images from a few labelled ones, with certainties, and write tables and a page.

    Args:
        data: A folder of images or any other source (docs/data.md).
        labels: A few labelled images: a .csv file with a path and a label per line, or a folder with a sub-folder per
            class. They may be among the images of `data`, or others.
        model: A run folder, `RUN@25`, or weights: FILE or METHOD:FILE. None if `features` are stored already.
        out: Folder for labels.csv, suggestions.csv, doubtful.csv, labels.html, and the features unless `features` is
            given.
        suggest: Number of images to suggest for labelling.
        seed: Seed of the held-out labels and of the classifiers.
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
        quiet: Show no progress.

    Returns:
        The label of every image with its certainty, images to label next, and labels that look wrong.
    """
    if suggest < 0:
        raise ConfigError(f"suggest must be at least 0, received {suggest}.")
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
    load_faiss("carp label")  # before minutes of encoding
    folder, display = Path(out), Display(quiet=quiet)
    check_output_folder(folder)
    labelled = open_images(labels, display, root=root, download=download)
    stored = Path(features) if features is not None else folder / FEATURES
    source, store = images_and_features(data, model, stored, branch=branch, options=options, display=display)
    known = known_labels(labelled, source, store)
    bank, classes = _bank(known, store, model, options)
    with display.counting("predicting labels", None) as progress:
        found = predict_labels(store.features, bank, classes, len(known.classes), seed=seed, progress=progress)
    places = list(store.places())
    rows = suggest_images(store.features, known.rows, found, suggest, seed=seed)
    shown = LabelledImages(
        name=source.name,
        prediction=found,
        classes=known.classes,
        given=dict(zip(known.rows.tolist(), known.labels.tolist(), strict=True)),
        others=len(bank) - len(known.rows),
        places=places,
        images=StoredImages(store, source),
        suggestions=rows,
        doubtful=[
            Contradicted(int(known.rows[each.place]), int(classes[each.place]), each)
            for each in doubtful_labels(found, classes)
            if each.place < len(known.rows)
        ],
        method=_method(found),
    )
    _write(folder, shown)
    write_labels_page(folder / PAGE, shown)
    return LabelledFiles(
        folder=folder,
        places=places,
        labels=[shown.label_of(row) for row in range(len(places))],
        certainty=np.array([shown.certainty_of(row) for row in range(len(places))]),
        given=len(classes),
        accuracy=None if found.method is None else found.method.accuracy,
        method=shown.method,
        suggestions=[places[row] for row in rows],
        doubtful=[places[each.row] for each in shown.doubtful],
    )


def _bank(
    known: KnownLabels, store: Store, model: str | Path | None, options: FeatureOptions
) -> tuple[Features, NDArray[np.int64]]:
    """Features and classes of the labelled images: those in the store, then the others, which are embedded now."""
    bank, classes = np.asarray(store.features[known.rows]), known.labels
    if known.others is not None:
        encoder = encoder_of(store, model, device=options.device)
        with pixel_limit(encoder.max_pixels):
            found = extract(
                encoder.module,
                known.others,
                size=encoder.size,
                device=encoder.device,
                batch_size=options.batch_size,
                precision=store.origin.transform["precision"],
                resize=encoder.resize,
                interpolation=encoder.interpolation,
            )
        assert known.others.labels is not None
        bank = np.concatenate([bank, found.features])
        classes = np.concatenate([classes, known.others.labels[found.indices]])
    missing = [name for number, name in enumerate(known.classes) if not (classes == number).any()]
    if missing:
        raise DataError(f"no image of the class '{missing[0]}' can be read. Give another image of it, or leave it out.")
    return bank, classes


def _method(found: LabelPrediction) -> str:
    if found.method is None:
        return "The nearest labelled image decides. Certainties are not calibrated: too few classes have two labels."
    best = found.method
    return (
        f"{best.name}: {best.accuracy:.1%} of {len(found.held_out):,} held-out labels are predicted correctly; "
        f"calibration error {best.calibration_error:.1%}."
    )


def _write(folder: Path, shown: LabelledImages) -> None:
    """Write the tables."""
    certainty = shown.prediction.certainty
    order = np.argsort(-shown.prediction.probabilities, axis=1, kind="stable")
    second = order[:, 1]
    rows = range(len(shown.places))

    def names(numbers: Sequence[int]) -> list[str]:
        return [shown.classes[number] for number in numbers]

    tables: dict[str, dict[str, Sequence[Any]]] = {
        TABLE: {
            "image": shown.places,
            "label": [shown.label_of(row) for row in rows],
            "certainty": [round(shown.certainty_of(row), 4) for row in rows],
            "given": ["yes" if row in shown.given else "" for row in rows],
            "predicted": names(order[:, 0].tolist()),
            "second": names(second.tolist()),
            "second_certainty": [round(float(shown.prediction.probabilities[row, second[row]]), 4) for row in rows],
        },
        NEXT: {
            "image": [shown.places[row] for row in shown.suggestions],
            "predicted": names(shown.prediction.classes[shown.suggestions].tolist()),
            "certainty": [round(float(certainty[row]), 4) for row in shown.suggestions],
        },
        DOUBTFUL: {
            "image": [shown.places[each.row] for each in shown.doubtful],
            "label": names([each.given for each in shown.doubtful]),
            "predicted": names([each.found.predicted for each in shown.doubtful]),
            "certainty": [round(each.found.probability, 4) for each in shown.doubtful],
        },
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, columns in tables.items():
            write_columns(folder / name, columns)
    except OSError as error:
        raise DataError(f"cannot write to {folder}: {error.strerror or error}. Give another --out.") from error
