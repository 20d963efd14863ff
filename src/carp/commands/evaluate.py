"""`carp eval`: how good are the features?"""

import inspect
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from carp import distributed
from carp.commands.detection import evaluate_detection
from carp.commands.labelled import LINEAR, Inputs, home_of
from carp.commands.ranked import find_copies, retrieve
from carp.commands.result_files import write_result
from carp.data.source import Openable
from carp.device import choose_device
from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.knn import check_neighbours
from carp.evaluation.linear_images import linear_on_images
from carp.evaluation.protocols import ON_IMAGES, PROTOCOLS, SINGLE_LABEL, check_settings, settings_of
from carp.evaluation.result import Result
from carp.features.encoder import is_weights, load
from carp.features.extract import Precision
from carp.features.layers import ENCODER
from carp.features.store import Origin, Store
from carp.run_folder import versions
from carp.training.display import Display

ALL = "all"
# These look at images in their own sizes, and at their names
RANKED: dict[str, Callable[..., tuple[Result, Origin]]] = {"retrieval": retrieve, "copies": find_copies}


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
    cached: bool = False,
    out: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
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
        resize: What their shorter side is scaled to before the centre is cut; 8/7 of `size` if None.
        precision: Of the encoder, `fp32` or `bf16`.
        cached: Train linear classifiers on stored features, not on random crops of the images: seconds for hours.
        out: Folder for `features` and `results`; the run if None, or for weights a folder of their name, here.
        root: Folder of torchvision's data sets.
        download: Let torchvision fetch what is missing.
        device: Where to run.
        quiet: Show no progress.
        **settings: Those of the protocol, such as `k=20`.

    Returns:
        Named values, what made them, and what lies behind them. Images that cannot be read are left out, with a
        warning.
    """
    run = find_protocol(protocol)
    if protocol in ON_IMAGES:
        return evaluate_detection(
            model, cast(Openable, data), branch=branch, out=out, device=device, quiet=quiet, **settings
        )
    settings = check_settings(protocol, run, settings)
    display = Display(quiet=quiet or distributed.rank() > 0)
    distributed.start(choose_device(device))
    encoder = None if model is None else load(model, branch, layer=layer, size=size, resize=resize, device=device)
    inputs = Inputs(encoder, model, out, precision, root, download, display)
    if protocol in RANKED:
        if test is not None:
            raise ConfigError(
                f"{protocol} has no test images, received {test}: see docs/protocols.md for its settings."
            )
        if size is not None or resize is not None or precision != "fp32":
            setting = "side=320 for the square" if protocol == "copies" else "max_side=224 for the longer side"
            raise ConfigError(
                f"{protocol} has its own rule for the size of images and computes in fp32: --size, --resize and "
                f"--precision have no meaning there. Write {setting}."
            )
        result, origin = run(inputs, data, **settings)
        described = {"train": origin.data["name"], "fingerprints": [origin.data["fingerprint"]]}
    else:
        result, origin, described = _on_labelled(protocol, inputs, data, test, settings, cached=cached)
    result = replace(
        cast(Result, result),
        settings={**origin.transform, **result.settings},
        data=described,
        model=origin.model,
        versions=versions(),
    )
    if distributed.rank() == 0 and (out is not None or model is not None):
        write_result(result, inputs.folder)
    return result


def find_protocol(name: str) -> Callable[..., Any]:
    """The function of a protocol, whose keyword arguments are its settings."""
    if name == ALL:
        raise ConfigError("'all' is for the command line: in Python evaluate one protocol at a time.")
    known: dict[str, Callable[..., Any]] = {**PROTOCOLS, **RANKED, **ON_IMAGES}
    if name not in known:
        names = (*known, ALL)
        raise ConfigError(f"there is no protocol '{name}'.{nearest(name, names)} Protocols: {', '.join(names)}.")
    return known[name]


def _on_labelled(
    protocol: str,
    inputs: Inputs,
    data: Openable | Store,
    test: Openable | Store | None,
    settings: dict[str, Any],
    *,
    cached: bool,
) -> tuple[Result, Origin, dict[str, Any]]:
    """A protocol of labelled features: its result, the origin of the features, and what is said of the data."""
    opened = inputs.open_both(data, test, single=protocol in SINGLE_LABEL)
    alone = opened[1] is None
    for k in settings.get("k", ()):  # before minutes of encoding
        check_neighbours(k, len(opened[0]), leave_one_out=alone)
    train, tested = inputs.take_both(protocol, *opened)
    if protocol == "knn" and "k" not in settings:
        settings = {**settings, "k": _usual_neighbours(len(train.images) - alone)}
    run = PROTOCOLS[protocol]
    if protocol == "linear" and not cached:
        run, settings = (
            linear_on_images,
            {**settings, **inputs.for_crops(opened[0], train), "warn": inputs.display.warn},
        )
    with inputs.display.counting(protocol, None) as progress:
        result = run(train.features, train.labels, tested.features, tested.labels, progress=progress, **settings)
    described = {
        "train": train.name,
        "test": tested.name,
        "fingerprints": [part.origin.data["fingerprint"] for part in (train, tested)],
        "left_out": {part.name: part.left_out for part in (train, tested) if part.left_out},
    }
    return result, train.origin, described


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
        The results, and notes: what was chosen, what is empty, which protocols the data do not allow.

    Linear classifiers are trained on stored features in `all`: augmented images take hours.
    """
    if model is None or is_weights(model):
        branches = ("teacher",)  # there is but one encoder
    names = tuple(PROTOCOLS) if protocol == ALL else (protocol,)
    if protocol == ALL and (settings := set(options) - set(inspect.signature(evaluate).parameters)):
        raise ConfigError(f"'all' takes no settings, received {sorted(settings)[0]}: give them to one protocol.")
    if protocol == ALL:
        options["cached"] = True
    results, refusals = list[Result](), dict[str, DataError]()
    for name in names:
        for branch in branches:
            try:
                results.append(evaluate(name, model, data, branch=branch, **options))
            except DataError as error:
                if protocol != ALL or isinstance(error.__cause__, OSError):  # a full disk is no property of the data
                    raise
                refusals[str(error)] = error
    if not results:
        raise next(iter(refusals.values()))
    if distributed.is_first():  # it was kept to continue, if interrupted
        shutil.rmtree(home_of(model, options.get("out")) / LINEAR, ignore_errors=True)
    return results, [*refusals, *(note for result in results for note in _notes(result))]


def _notes(result: Result) -> list[str]:
    """What a person should know beside the values."""
    which = f"{result.protocol}, {result.model.get('branch') or result.model['name']}"
    if result.protocol == "linear":
        chosen, count = result.details["chosen"], len(result.details["grid"])
        words = f"{chosen['optimiser']}, lr {chosen['lr']:g}, weight decay {chosen['weight_decay']:g}"
        return [f"{which}: chosen of {count} on images held out: {words}; the result file has them all."]
    if result.protocol == "kmeans":
        empty = {run["seed"]: int(run["empty_train"]) for run in result.details["seeds"] if run["empty_train"]}
        return [f"{which}: with seed {seed} {count} clusters hold no training image." for seed, count in empty.items()]
    return []


def _usual_neighbours(most: int) -> list[int]:
    """Those of the usual k that a small bank has."""
    usual: Sequence[int] = settings_of(PROTOCOLS["knn"])["k"].default
    return [k for k in usual if k <= most] or [max(1, most)]
