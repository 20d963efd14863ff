"""`carp eval`: how good are the features?"""

import hashlib
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from carp import distributed
from carp.commands.stored import open_images, store_features
from carp.data.named_sets import counterpart
from carp.data.source import Openable, Source, single_labels, unlabelled
from carp.errors import ConfigError, DataError
from carp.evaluation.inputs import Features, Labels
from carp.evaluation.knn import check_neighbours
from carp.evaluation.linear_choice import choose_held_out
from carp.evaluation.protocols import PROTOCOLS, SINGLE_LABEL, check_settings, find_protocol, settings_of
from carp.evaluation.result import Result
from carp.features.encoder import BranchName, Encoder, load
from carp.features.extract import Precision
from carp.features.layers import ENCODER
from carp.features.store import Origin, Store, is_store, open_store
from carp.report.columns import data_name
from carp.run_folder import versions
from carp.training.display import Display

FEATURES, RESULTS = "features", "results"  # sub-folders of a run
ALL = "all"
_TEST_SHARE = 0.2  # of every class, where a protocol needs test images and none are given
_SPLIT_SEED = 0


def evaluate(
    protocol: str,
    model: str | Path | None,
    data: Openable,
    *,
    test: Openable | None = None,
    branch: BranchName = "teacher",
    layer: str = ENCODER,
    size: int | None = None,
    precision: Precision = "fp32",
    out: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
    **settings: Any,
) -> Result:
    """Evaluate an encoder, or features that are stored already.

    Features are extracted once and kept in `out`; the next protocol on the same images finds them there.

    Args:
        protocol: `knn`, `kmeans`, `linear` or `few-shot` (docs/protocols.md).
        model: A run folder; None if `data` and `test` are folders that `embed` wrote.
        data: Labelled images: the bank of k-NN, the training part of the others. Or stored features. A data set of the
            table (`dataset:pets`) brings its own test images.
        test: Labelled images to test on, or their features. Without them k-NN leaves every image out in turn, k-means
            is scored on the images that it clusters, and the others hold out a fifth of every class.
        branch: Which encoder of the run: `teacher`, `student`, `untrained` or `raw pixels`.
        layer: `encoder` (pooled output), `projector`, or the name of a layer.
        size: Side of the images in pixels; that of training if None.
        precision: Of the encoder, `fp32` or `bf16`.
        out: Folder that keeps the features; the run if None.
        root: Folder of torchvision's data sets.
        download: Let torchvision fetch what is missing.
        device: Where to run.
        quiet: Show no progress.
        **settings: Those of the protocol, such as `k=20`.

    Returns:
        Named values, what made them, and what lies behind them. Images that cannot be read are left out, with a
        warning.
    """
    run, settings = find_protocol(protocol), check_settings(protocol, settings)
    display = Display(quiet=quiet or distributed.rank() > 0)
    encoder = None if model is None else load(model, branch, layer=layer, size=size, device=device)
    inputs = _Inputs(encoder, model, out, precision, root, download, display)
    if test is None and isinstance(data, str):
        test = counterpart(data)
    train_part, test_part = inputs.open(data), None if test is None else inputs.open(test)
    if protocol in SINGLE_LABEL:
        for part in (train_part, test_part or train_part):
            single_labels(part, protocol)
    if protocol == "knn":
        settings = _neighbours(settings, len(train_part), leave_one_out=test is None)
    train = inputs.take(train_part)
    if test_part is not None:
        tested, how = _with_classes_of(train, inputs.take(test_part)), test_part.name
    else:
        train, tested, how = _without_test(protocol, train)
    with display.counting(protocol, None) as progress:
        result = run(train.features, train.labels, tested.features, tested.labels, progress=progress, **settings)
    return replace(
        result,
        settings={**train.origin.transform, **result.settings},
        data={
            "train": train.origin.data["name"],
            "test": how,
            "fingerprints": [part.origin.data["fingerprint"] for part in (train, tested)],
            "left_out": {part.origin.data["name"]: part.left_out for part in (train, tested) if part.left_out},
        },
        model=train.origin.model,
        versions=versions(),
    )


def evaluate_branches(
    protocol: str,
    model: str | Path | None,
    data: Openable,
    *,
    branches: Sequence[str] = ("student", "teacher"),
    **options: Any,
) -> tuple[list[Result], list[str]]:
    """Evaluate several encoders of a run; with the protocol `all` by every protocol that the data allow.

    Returns:
        The results, and notes on protocols that the data do not allow. Linear classifiers are trained on stored
        features in `all`: augmented images take hours.
    """
    names = tuple(PROTOCOLS) if protocol == ALL else (protocol,)
    if protocol == ALL and (settings := set(options) - set(inspect.signature(evaluate).parameters)):
        raise ConfigError(f"'all' takes no settings, received {sorted(settings)[0]}: give them to one protocol.")
    results, refusals = list[Result](), dict[str, DataError]()
    for name in names:
        for branch in branches if model is not None else branches[:1]:
            try:
                results.append(evaluate(name, model, data, branch=cast(BranchName, branch), **options))
            except DataError as error:
                if protocol != ALL:
                    raise
                refusals[str(error)] = error
    if not results:
        raise next(iter(refusals.values()))
    return results, list(refusals)


def write_result(result: Result, out: str | Path) -> Path:
    """Write a result into the sub-folder `results`, under a name that says what it is; other settings, other name."""
    kept = (result.settings, result.data["fingerprints"], result.model.get("hash"))
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    words = (result.protocol, data_name(result.data["train"]), result.model.get("branch", ""), digest)
    name = "-".join(re.sub(r"[^\w.+%]+", "_", word) for word in words if word)
    path = Path(out) / RESULTS / f"{name}.json"
    result.write(path)
    return path


@dataclass(frozen=True)
class _Labelled:
    """Features with a label each. Those left out in turn have no features of their own to be tested on."""

    features: Features | None
    labels: Labels | None
    classes: tuple[str, ...]
    origin: Origin
    left_out: int
    """Images that cannot be read."""

    def rows(self, chosen: NDArray[np.bool_]) -> "_Labelled":
        assert self.features is not None
        assert self.labels is not None
        return replace(self, features=self.features[chosen], labels=self.labels[chosen])


@dataclass(frozen=True)
class _Stored:
    """Features that were stored before, in the place of images."""

    store: Store

    @property
    def name(self) -> str:
        return str(self.store.origin.data["name"])

    @property
    def labels(self) -> Labels | None:
        return self.store.labels

    def __len__(self) -> int:
        return len(self.store.features)


@dataclass(frozen=True)
class _Inputs:
    """Turns what a person names as data into features."""

    encoder: Encoder | None
    model: str | Path | None
    out: str | Path | None
    precision: Precision
    root: str | Path | None
    download: bool
    display: Display

    def open(self, data: Openable) -> Source | _Stored:
        """Images or stored features, which must have labels."""
        if isinstance(data, str | Path) and is_store(data):
            store = open_store(Path(data))
            if store.labels is None:
                raise DataError(f"the features in {data} have no labels: embed labelled images.")
            return _Stored(store)
        if self.model is None:
            raise ConfigError(f"{data} holds no stored features: give a run folder too, or a folder of `carp embed`.")
        source = open_images(data, self.model, self.display, root=self.root, download=self.download)
        if source.labels is None:
            raise unlabelled(source)
        return source

    def take(self, data: Source | _Stored) -> _Labelled:
        """Their features: stored, found, or extracted now."""
        store, origin = (data.store, data.store.origin) if isinstance(data, _Stored) else self._extract(data)
        return _Labelled(store.features, store.labels, store.classes, origin, len(store.unreadable))

    def _extract(self, source: Source) -> tuple[Store, Origin]:
        """The origin is that of now: a run that was moved has another name than when its features were extracted."""
        assert self.encoder is not None
        assert self.model is not None
        origin = self.encoder.origin(source, self.precision)
        folder = Path(self.out or self.model) / FEATURES / origin.key()[:16]
        store = store_features(self.encoder, source, folder, self.display, precision=self.precision, model=self.model)
        return store, origin


def _neighbours(settings: dict[str, Any], bank: int, *, leave_one_out: bool) -> dict[str, Any]:
    """Check k before minutes of encoding; a small bank takes those of the usual k that it has."""
    if "k" in settings:
        for k in settings["k"]:
            check_neighbours(k, bank, leave_one_out=leave_one_out)
        return settings
    most = max(1, bank - leave_one_out)
    usual: Sequence[int] = settings_of("knn")["k"].default
    return {**settings, "k": [k for k in usual if k <= most] or [most]}


def _without_test(protocol: str, data: _Labelled) -> tuple[_Labelled, _Labelled, str]:
    """Training part, test part, and how they were parted, in words."""
    if protocol == "knn":
        return data, replace(data, features=None, labels=None), "leave one out"
    if protocol == "kmeans":
        return data, data, "the same images"
    assert data.labels is not None
    if data.labels.ndim > 1:
        raise DataError(f"{data.origin.data['name']} has several labels per image: give test images with --test.")
    held_out = choose_held_out(data.labels, _TEST_SHARE, _SPLIT_SEED)
    return data.rows(~held_out), data.rows(held_out), f"{_TEST_SHARE:.0%} of every class, held out"


def _with_classes_of(train: _Labelled, test: _Labelled) -> _Labelled:
    """The test part with the numbers that the training part gives to its classes."""
    if train.classes == test.classes:
        return test
    unknown = sorted(set(test.classes) - set(train.classes))
    if unknown:
        names = train.origin.data["name"], test.origin.data["name"]
        raise DataError(f"{names[0]} and {names[1]} have different classes: '{unknown[0]}' is only in {names[1]}.")
    assert test.labels is not None
    numbers = np.array([train.classes.index(name) for name in test.classes])
    if test.labels.ndim == 1:
        return replace(test, labels=numbers[test.labels], classes=train.classes)
    labels = np.zeros((len(test.labels), len(train.classes)), dtype=np.int64)
    labels[:, numbers] = test.labels
    return replace(test, labels=labels, classes=train.classes)
