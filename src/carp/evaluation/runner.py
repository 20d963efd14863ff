"""Runs protocols: opens the data, obtains the features, runs each protocol, and writes the results."""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from carp.compute import distributed
from carp.compute.device import choose_device
from carp.console.progress import Display
from carp.encoders.load import TRAINED, load_encoder, split_branch
from carp.errors import CarpError, DataError, MissingExtraError, StorageError
from carp.evaluation.data_names import FILE_UNSAFE, name_of_data, without_mark
from carp.evaluation.labelled_features import LabelledFeatures, with_test_images, without_test_images
from carp.evaluation.paper_tables.request import request_of
from carp.evaluation.predictions import Predictions
from carp.evaluation.protocol import AnyProtocol
from carp.evaluation.result import Result
from carp.evaluation.workspace import Workspace, output_folder, with_origin
from carp.features.feature_options import FeatureOptions
from carp.features.store import Store
from carp.files.outputs import check_output_folder
from carp.images.labels import single_labels, unlabelled
from carp.images.source import Openable
from carp.images.sources.paper.dataset_source import counterpart
from carp.runs.epoch_argument import at_epoch
from carp.runs.run_folder import is_run, open_run, versions

RESULTS = "results"  # sub-folder


def run_protocols(
    protocols: Sequence[AnyProtocol],
    model: str | Path | None,
    data: Openable | Store,
    *,
    test: Openable | Store | None,
    branches: Sequence[str],
    epochs: Sequence[int] = (),
    options: FeatureOptions,
    out: str | Path | None,
    predictions: str | Path | None = None,
    quiet: bool,
    skip: bool = False,
) -> tuple[list[Result], list[str]]:
    """Evaluate one or more encoders of a model by one or more protocols, and write the results.

    Args:
        protocols: With their settings. Either all of them need features, or there is only one.
        model: A run folder, or weights, which have one encoder; None if `data` and `test` are stored features.
        data: Images, or stored features.
        test: Test images, or their features.
        branches: Encoders of the run.
        epochs: Epochs of the run; empty for its newest checkpoint.
        options: How features are extracted.
        out: Folder for features and results; see `output_folder`.
        predictions: File for the predictions of all encoders.
        quiet: Show no progress.
        skip: Skip, with a note, a protocol that does not suit the data or that needs a missing extra.

    Returns:
        The results, and notes for their reader.
    """
    folder = output_folder(model, out)
    check_output_folder(folder)
    writer = None if predictions is None else Predictions.checked(predictions, protocols)
    if model is None:
        branches = ("teacher",)
    if needs_features := any(protocol.needs != "boxes" for protocol in protocols):
        distributed.start(choose_device(options.device))
    display = Display(quiet=quiet or distributed.rank() > 0)  # one for all, so that no warning is shown twice
    results, notes, refusals = list[Result](), list[str](), dict[str, CarpError]()
    for chosen, branch in _encoders(model, branches, epochs):
        load = cache(partial(load_encoder, chosen, branch)) if chosen is not None and needs_features else None
        for protocol in protocols:
            extraction = with_preset(options, protocol)
            encoder = None if load is None else load(extraction)
            work = Workspace(chosen, branch, encoder, extraction, folder, display, predict=writer is not None)
            try:
                result = _run(protocol, work, data, test, writer)
            except (DataError, MissingExtraError) as error:
                # A full or failing disk says nothing about the data
                if not skip or isinstance(error, StorageError) or isinstance(error.__cause__, OSError):
                    raise
                skipped = f"{protocol.name} was skipped: " if isinstance(error, MissingExtraError) else ""
                refusals[f"{skipped}{error}"] = error
                continue
            if distributed.is_first() and (out is not None or model is not None):
                _write(result, folder)
            results.append(result)
            notes += [*_other_extraction(protocol, extraction, result), *protocol.notes(result)]
    if not results:
        raise next(iter(refusals.values()))
    if distributed.is_first():
        if writer is not None:
            writer.write()
        for protocol in protocols:
            if protocol.temporary_folder:
                shutil.rmtree(folder / protocol.temporary_folder, ignore_errors=True)
    return results, list(dict.fromkeys([*refusals, *notes]))


def _encoders(
    model: str | Path | None, branches: Sequence[str], epochs: Sequence[int]
) -> list[tuple[str | Path | None, str]]:
    """List the encoders to evaluate: model and branch. Branches that do not depend on the epoch come once."""
    models = [at_epoch(model, epoch) for epoch in epochs] or [model]
    for chosen in models:
        if chosen is not None and is_run(chosen):
            open_run(chosen).checkpoint_path()  # a missing epoch is found before anything is computed
    return [(m, b) for m in models for b in branches if m is models[0] or split_branch(b)[0] in TRAINED]


def _run(
    protocol: AnyProtocol,
    work: Workspace,
    data: Openable | Store,
    test: Openable | Store | None,
    writer: Predictions | None,
) -> Result:
    """Run one protocol with one encoder."""
    if protocol.needs != "features":
        result = protocol.run(data, None, work)
    else:
        train, part = _take(protocol, work, data, test)
        result = protocol.run(train, part, work)
        tested = part or replace(train, name=protocol.without_test)
        described = {
            "train": train.name,
            "test": tested.name,
            "fingerprints": [part.origin.data["fingerprint"] for part in (train, tested)],
            "left_out": {part.name: part.num_unreadable for part in (train, tested) if part.num_unreadable},
        }
        result = with_origin(result, train.origin, described)
        if writer is not None:
            writer.add(result, tested)
    preset = getattr(protocol.settings, "preset", None)
    settings = result.settings if preset is None else {"preset": preset, **result.settings}
    request = request_of(protocol, data, test, work.options)
    return replace(result, protocol=protocol.name, settings=settings, versions=versions(), request=request)


def with_preset(options: FeatureOptions, protocol: AnyProtocol) -> FeatureOptions:
    """Return the options of feature extraction, with those of the protocol's preset where none was given."""
    implied = {key: value for key, value in protocol.settings.extraction().items() if getattr(options, key) is None}
    return options.model_copy(update=implied)


def _other_extraction(protocol: AnyProtocol, options: FeatureOptions, result: Result) -> list[str]:
    """Return a note if stored features were not extracted as the protocol's preset requires."""
    return [
        f"{protocol.name}: the preset '{result.settings['preset']}' extracts features with {key} {value}, but the "
        f"stored features were extracted with {result.settings[key]}. Embed the images with --{key} {value}."
        for key, value in protocol.settings.extraction().items()
        if result.settings.get(key, value) != getattr(options, key) == value
    ]


def _take(
    protocol: AnyProtocol, work: Workspace, data: Openable | Store, test: Openable | Store | None
) -> tuple[LabelledFeatures, LabelledFeatures | None]:
    """Return features and labels of the training and the test part; a published dataset has its own test part."""
    if test is None and isinstance(data, str):
        test = counterpart(data)
    opened = [work.open(part) for part in (data, test) if part is not None]
    for part in opened:
        if part.labels is None:
            raise unlabelled(part)
        if not protocol.several_labels:
            single_labels(part, protocol.title)
    protocol.check(len(opened[0]), leave_one_out=test is None and protocol.without_test == "leave one out")
    train, *tested = (work.take(part) for part in opened)
    return with_test_images(train, tested[0]) if tested else without_test_images(train, protocol.without_test)


def _write(result: Result, folder: Path) -> None:
    """Write a result under a name that describes it; results with other settings get another name."""
    identity = (result.settings, result.data["fingerprints"], result.model.get("hash"))
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    epoch = result.at_epoch.replace("@", "epoch")
    words = (without_mark(name_of_data(result.data)), result.model.get("branch", ""), epoch, digest)
    name = "-".join([result.protocol, *(re.sub(FILE_UNSAFE, "_", word) for word in words if word)])
    try:
        result.write(folder / RESULTS / f"{name}.json")
    except OSError as error:
        raise DataError(
            f"cannot write results to {folder / RESULTS}: {error.strerror or error}. "
            "Free some space, or give another --out."
        ) from error
