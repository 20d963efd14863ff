"""`carp eval`: evaluate features."""

from pathlib import Path
from typing import Any

from carp.console.progress import Display
from carp.errors import ConfigError
from carp.evaluation.protocol import OPTIONS, AnyProtocol
from carp.evaluation.protocols import find_protocol
from carp.evaluation.result import Result
from carp.evaluation.runner import run_protocols
from carp.evaluation.workspace import model_for
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.store import Store
from carp.images.source import Openable
from carp.images.views.interpolation import Interpolation


def evaluate(
    protocol: str,
    model: str | Path | None,
    data: Openable | Store,
    *,
    test: Openable | Store | None = None,
    branch: str = "teacher",
    epoch: int | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    precision: Precision = "fp32",
    out: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    predictions: str | Path | None = None,
    quiet: bool = True,
    **settings: Any,
) -> Result:
    """Evaluate an encoder or stored features.

    Features are extracted once and kept in `out`; the next protocol on the same images finds them there. Under torchrun
    every process calls this, and they share the work (docs/scaling.md).

    Args:
        protocol: `carp eval --help` lists the protocols, docs/protocols.md describes them.
        model: A run folder, `RUN@25`, or weights (`swav:FILE`, `lite0`; docs/weights.md). None if `data` and `test`
            are folders that `embed` wrote; otherwise None is `lite0`, if it is installed.
        data: Labelled images to train on (for k-NN, to search in), or their stored features. A published dataset
            (`dataset:pets`) has its own test images. Some protocols take other data: a database of images to search,
            a folder of altered copies, or a folder with boxes.
        test: Labelled images to test on, or their stored features. Without them, it depends on the protocol:
            leave-one-out, testing on the same images, or holding out a fifth of every class.
        branch: Encoder of a run: `teacher`, `student`, `untrained` or `raw pixels`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        interpolation: How images are resized: `bicubic` or `bilinear`. None is bicubic unless a preset differs.
        precision: Precision of the encoder, `fp32` or `bf16`.
        out: Folder for `features` and `results`. None is the run folder or, for weights, a folder named after them in
            the current directory.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        predictions: A .csv or .parquet file for one row per test image: its path, its class, the predicted class and
            the score of the prediction. Only for protocols that classify.
        quiet: Show no progress.
        **settings: Settings of the protocol, such as `k=20`; `carp eval PROTOCOL --help` lists them.

    Returns:
        Named values, the settings and data behind them, and details. Images that cannot be read are left out, with a
        warning.
    """
    chosen = find_protocol(protocol)
    options = FeatureOptions(
        layer=layer,
        size=size,
        resize=resize,
        interpolation=interpolation,
        precision=precision,
        root=root,
        download=download,
        device=device,
    )
    if "test" in chosen.settings_type.model_fields and test is not None:
        settings, test = {"test": test, **settings}, None
    _refuse_unused(chosen, options, test)
    if chosen.needs != "boxes":
        model = model_for(model, data, Display(quiet=quiet).say)
    results, _ = run_protocols(
        [chosen(chosen.settings_type(**settings))],
        model,
        data,
        test=test,
        branches=[branch],
        epochs=[] if epoch is None else [epoch],
        options=options,
        out=out,
        predictions=predictions,
        quiet=quiet,
    )
    return results[0]


def _refuse_unused(protocol: type[AnyProtocol], options: FeatureOptions, test: object) -> None:
    """Refuse an argument that the protocol would ignore; on the command line it has no such option."""
    given = {key for key, value in options if value != type(options).model_fields[key].default}
    unused = sorted(given - set(OPTIONS[protocol.needs]))
    if test is not None and protocol.needs != "features":
        unused.append("test")
    if unused:
        raise ConfigError(
            f"{protocol.name} does not use {unused[0]}: leave it out. Settings of {protocol.name}: "
            f"{', '.join(protocol.settings_type.model_fields)}."
        )
