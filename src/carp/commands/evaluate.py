"""`carp eval`: how good are the features?"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from carp.commands.evaluation_notes import notes_on, usual_neighbours
from carp.commands.labelled import LINEAR, Inputs, Labelled, home_of
from carp.commands.predictions import Predictions, check_predictions
from carp.commands.protocols import ALL, OF_ALL, check_options, check_protocol, check_setting_names, find_protocol
from carp.commands.result_files import write_result
from carp.compute import distributed
from carp.compute.device import choose_device
from carp.console.progress import Display
from carp.encoders.load import load_encoder
from carp.encoders.model_argument import is_weights
from carp.errors import CarpError, DataError, MissingExtraError, StorageError
from carp.evaluation.knn import check_neighbours
from carp.evaluation.linear.over_crops import linear_on_images
from carp.evaluation.protocols import check_settings
from carp.evaluation.result import Result
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.store import Store
from carp.files.outputs import check_output_folder
from carp.images.source import Openable
from carp.runs.run_folder import versions


def evaluate(
    protocol: str,
    model: str | Path | None,
    data: Openable | Store,
    *,
    test: Openable | Store | None = None,
    branch: str = "teacher",
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    cached: bool = False,
    out: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    predictions: str | Path | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Result:
    """Evaluate an encoder, or features that are stored already.

    Features are extracted once and kept in `out`; the next protocol on the same images finds them there. Under torchrun
    every process calls this, and they share the work (docs/scaling.md).

    Args:
        protocol: `knn`, `kmeans`, `linear`, `few-shot`, `retrieval`, `copies` or `detection`
            (docs/protocols.md).
        model: A run folder, or weights of another method (`swav:FILE`; `carp weights`); None if `data` and `test` are
            folders that `embed` wrote.
        data: Labelled images: the bank of k-NN, the training part of the others. Or stored features. A data set of the
            table (`dataset:pets`) brings its own test images.
        test: Labelled images to test on, or their features. Without them k-NN leaves every image out in turn, k-means
            is scored on the images that it clusters, and the others hold out a fifth of every class.
        branch: Which encoder of the run: `teacher`, `student`, `untrained` or `raw pixels`.
        layer: `encoder` (pooled output), `projector`, or the name of a layer.
        size: Side of the images in pixels; that of training if None.
        resize: What their shorter side is scaled to before the centre is cut; if None 8/7 of `size`, and `size` itself
            where that is at most 64.
        precision: Of the encoder, `fp32` or `bf16`.
        batch_size: Images per batch of the encoder.
        cached: Train linear classifiers on stored features, not on random crops of the images: minutes, not hours.
        out: Folder for `features` and `results`; the run if None, or for weights a folder of their name, here.
        root: Folder of torchvision's data sets.
        download: Let torchvision fetch what is missing.
        device: Where to run.
        predictions: A .csv or .parquet file for one row per test image: its path, its class, the class that is
            predicted and how sure that is. For knn, kmeans, linear and few-shot.
        quiet: Show no progress.
        **settings: Those of the protocol, such as `k=20`.

    Returns:
        Named values, what made them, and what lies behind them. Images that cannot be read are left out, with a
        warning.
    """
    options = FeatureOptions(
        layer=layer,
        size=size,
        resize=resize,
        precision=precision,
        batch_size=batch_size,
        root=root,
        download=download,
        device=device,
    )
    settings = _checked(protocol, options, test, settings, cached=cached)
    check_output_folder(home_of(model, out))
    wanted = None if predictions is None else Predictions(check_predictions(predictions, protocol))
    if find_protocol(protocol).takes == "boxes":
        return _on_boxes(model, data, test, branch, options, out, settings, quiet=quiet)
    inputs = _inputs(model, branch, options, out, Display(quiet=quiet or distributed.rank() > 0))
    result = _evaluate(protocol, inputs, data, test, settings, cached=cached, predictions=wanted)
    if wanted is not None and distributed.is_first():
        wanted.write()
    return result


def evaluate_branches(
    protocol: str,
    model: str | Path | None,
    data: Openable,
    *,
    branches: Sequence[str] = ("student", "teacher"),
    test: Openable | None = None,
    cached: bool = False,
    predictions: str | Path | None = None,
    out: str | Path | None = None,
    features: FeatureOptions | None = None,
    quiet: bool = True,
    **options: Any,
) -> tuple[list[Result], list[str]]:
    """Evaluate several encoders of a run; with the protocol `all` by every protocol that the data allow.

    Args:
        protocol: As in `evaluate`, or `all`: linear classifiers are then trained on stored features, because augmented
            images take hours.
        model: A run folder, or weights, which have but one encoder.
        data: Labelled images.
        branches: Encoders of the run.
        test: Labelled images to test on.
        cached: As in `evaluate`.
        predictions: As in `evaluate`; one file for all encoders.
        out: As in `evaluate`.
        features: How features are extracted; the defaults if None.
        quiet: Show no progress.
        **options: The settings of the protocol.

    Returns:
        The results, and notes: what was chosen, what is empty, which protocols the data do not allow or need an extra
        that is not installed.
    """
    check_protocol(protocol)
    wanted = None if predictions is None else Predictions(check_predictions(predictions, protocol))
    if model is None or is_weights(model):
        branches = ("teacher",)
    features = features or FeatureOptions()
    check_setting_names(protocol, options)
    names = OF_ALL if protocol == ALL else (protocol,)
    settings = {name: _checked(name, features, test, options, cached=cached and protocol != ALL) for name in names}
    check_output_folder(home_of(model, out))
    display = Display(quiet=quiet or distributed.rank() > 0)  # of all, so that nothing is told twice
    results, refusals = list[Result](), dict[str, CarpError]()
    cached = cached or protocol == ALL
    for branch in branches:
        if find_protocol(names[0]).takes == "boxes":
            results.append(_on_boxes(model, data, test, branch, features, out, options, quiet=quiet))
            continue
        inputs = _inputs(model, branch, features, out, display)
        for name in names:
            try:
                results.append(_evaluate(name, inputs, data, test, settings[name], cached=cached, predictions=wanted))
            except (DataError, MissingExtraError) as error:
                # A full disk or a failing one is no property of the data
                if protocol != ALL or isinstance(error, StorageError) or isinstance(error.__cause__, OSError):
                    raise
                skipped = f"{name} was skipped: " if isinstance(error, MissingExtraError) else ""
                refusals[f"{skipped}{error}"] = error
    if not results:
        raise next(iter(refusals.values()))
    if wanted is not None and distributed.is_first():
        wanted.write()
    if distributed.is_first():  # it was kept to continue, if interrupted
        shutil.rmtree(home_of(model, out) / LINEAR, ignore_errors=True)
    return results, list(dict.fromkeys([*refusals, *(note for r in results for note in notes_on(r, options))]))


def _inputs(
    model: str | Path | None, branch: str, options: FeatureOptions, out: str | Path | None, display: Display
) -> Inputs:
    """Those of an encoder, which is loaded, or of stored features."""
    distributed.start(choose_device(options.device))
    encoder = None if model is None else load_encoder(model, branch, options)
    return Inputs(encoder, model, out, options, display)


def _checked(
    protocol: str, options: FeatureOptions, test: object, settings: Mapping[str, Any], *, cached: bool
) -> dict[str, Any]:
    """The settings of a protocol, before anything is loaded."""
    found = find_protocol(protocol)
    features = {key: value for key, value in options.model_dump().items() if key not in ("batch_size", "device")}
    check_options(protocol, cached=cached, test=test, features=features)
    return dict(settings) if found.takes == "boxes" else check_settings(protocol, found.load(), settings)


def _on_boxes(
    model: str | Path | None,
    data: Openable | Store,
    test: Openable | Store | None,
    branch: str,
    options: FeatureOptions,
    out: str | Path | None,
    settings: dict[str, Any],
    *,
    quiet: bool,
) -> Result:
    """Detection, which takes an encoder apart and has folders of its own."""
    from carp.commands.detection import evaluate_detection

    if test is not None:
        settings = {**settings, "test": test}
    return evaluate_detection(
        model,
        cast(Openable, data),
        branch=branch,
        out=out,
        device=options.device,
        quiet=quiet,
        **settings,
    )


def _evaluate(
    protocol: str,
    inputs: Inputs,
    data: Openable | Store,
    test: Openable | Store | None,
    settings: dict[str, Any],
    *,
    cached: bool,
    predictions: Predictions | None = None,
) -> Result:
    """One protocol with one encoder; the result is written if there is a place for it."""
    tested = None
    if find_protocol(protocol).takes == "images":
        result, origin = find_protocol(protocol).load()(inputs, data, **settings)
        described = {**result.data, "train": origin.data["name"], "fingerprints": [origin.data["fingerprint"]]}
    else:
        if predictions is not None:
            settings = {**settings, "predict": True}
        result, train, tested, described = _on_labelled(protocol, inputs, data, test, settings, cached=cached)
        origin = train.origin
    result = replace(
        cast(Result, result),
        settings={**origin.transform, **result.settings},
        data=described,
        model=origin.model,
        versions=versions(),
    )
    if predictions is not None and tested is not None:
        labels = train.labels if tested.labels is None else tested.labels  # every image was left out in turn
        assert labels is not None
        predictions.add(result, tested, labels)
    if distributed.rank() == 0 and (inputs.out is not None or inputs.model is not None):
        write_result(result, inputs.folder)
    return result


def _on_labelled(
    protocol: str,
    inputs: Inputs,
    data: Openable | Store,
    test: Openable | Store | None,
    settings: dict[str, Any],
    *,
    cached: bool,
) -> tuple[Result, Labelled, Labelled, dict[str, Any]]:
    """A protocol of labelled features: its result, its training and test part, and what is said of the data."""
    found = find_protocol(protocol)
    opened = inputs.open_both(data, test, single=not found.several_labels)
    alone = opened[1] is None
    for k in settings.get("k", ()):  # before minutes of encoding
        check_neighbours(k, len(opened[0]), leave_one_out=alone)
    train, tested = inputs.take_both(protocol, *opened)
    if protocol == "knn" and "k" not in settings:
        settings = {**settings, "k": usual_neighbours(len(train.images) - alone)}
    run = found.load()
    if protocol == "linear" and not cached:
        run = linear_on_images
        settings = {**settings, **inputs.for_crops(opened[0], train), "warn": inputs.display.warn_once}
    with inputs.display.counting(protocol, None) as progress:
        result = run(train.features, train.labels, tested.features, tested.labels, progress=progress, **settings)
    described = {
        "train": train.name,
        "test": tested.name,
        "fingerprints": [part.origin.data["fingerprint"] for part in (train, tested)],
        "left_out": {part.name: part.left_out for part in (train, tested) if part.left_out},
    }
    return result, train, tested, described
