"""`carp embed`: the features of images, stored on disk."""

from pathlib import Path
from typing import Literal, get_args

from carp.compute import distributed
from carp.console.progress import Display
from carp.encoders.load import load_encoder
from carp.encoders.packaged import or_default
from carp.encoders.take_features import open_images, take_features
from carp.errors import ConfigError, nearest
from carp.features.feature_options import ENCODER, FeatureOptions, Precision
from carp.features.store import Store
from carp.features.tabular import require_pyarrow, write_csv, write_parquet
from carp.files.outputs import check_output_folder
from carp.images.source import Openable
from carp.images.views.interpolation import Interpolation
from carp.runs.epoch_argument import at_epoch

Format = Literal["npy", "parquet", "csv"]
FORMATS: tuple[Format, ...] = get_args(Format)


def embed(
    model: str | Path | None,
    data: Openable,
    out: str | Path,
    *,
    branch: str = "teacher",
    epoch: int | None = None,
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    interpolation: Interpolation | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    format: Format = "npy",
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Store:
    """Extract the features of images into a folder.

    The same call resumes an interrupted extraction, and returns immediately if all features are already in the folder.
    Under torchrun every process calls this, and they share the work.

    Args:
        model: A run folder, `RUN@25` for the run at the end of epoch 25, or weights: FILE, METHOD:FILE or a name
            (docs/weights.md). None is `lite0`, if it is installed.
        data: A folder of images or any other source (docs/data.md), labelled or not.
        out: The folder for the features.
        branch: Encoder of a run: `teacher` or `student`.
        epoch: The epoch of the run, another way to write `RUN@EPOCH`. None is the newest checkpoint.
        layer: Which output: `encoder` (pooled), `projector`, or the name of a layer such as `layer3`.
        size: Side of the images in pixels. None is the size used for training.
        resize: Length of the shorter side before the centre crop. None is 8/7 of `size`, or `size` itself up to 64.
        interpolation: How images are resized: `bicubic` or `bilinear`. None is bicubic.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images per batch.
        format: `parquet` and `csv` write an additional file into the folder.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show no progress.

    Returns:
        The store: `features` [M, F], `labels`, `classes`, `places()`, and the `origin` of the features.
    """
    if format not in FORMATS:
        raise ConfigError(f"there is no format '{format}'.{nearest(format, FORMATS)} Formats: {', '.join(FORMATS)}.")
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
    check_output_folder(out)
    if format == "parquet":
        require_pyarrow("--format parquet")  # before hours of encoding
    display = Display(quiet=quiet or distributed.rank() > 0)
    encoder = load_encoder(or_default(model, display.say), branch, options)
    source = open_images(data, encoder, options, display)
    store = take_features(encoder, source, Path(out), options, display)
    if format != "npy" and distributed.rank() == 0:
        (write_parquet if format == "parquet" else write_csv)(store)
    return store
