"""`carp embed`: the features of images, kept on disk."""

from pathlib import Path
from typing import Literal, get_args

from carp.commands.stored import open_images, store_features
from carp.compute import distributed
from carp.console.progress import Display
from carp.encoders.layers import ENCODER
from carp.encoders.load import load
from carp.errors import ConfigError, nearest
from carp.features.extract import Precision
from carp.features.store import Store
from carp.features.tabular import require_pyarrow, write_csv, write_parquet
from carp.files.outputs import check_output_folder
from carp.images.source import Openable

Form = Literal["npy", "parquet", "csv"]
FORMS: tuple[Form, ...] = get_args(Form)


def embed(
    model: str | Path,
    data: Openable,
    out: str | Path,
    *,
    branch: str = "teacher",
    layer: str = ENCODER,
    size: int | None = None,
    resize: int | None = None,
    precision: Precision = "fp32",
    batch_size: int = 256,
    format: Form = "npy",
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Store:
    """Extract the features of images into a folder; the same call again continues, or finds that all is there.

    Args:
        model: A run folder, or weights of another method: FILE or METHOD:FILE (`carp weights`).
        data: Images of any kind (docs/data.md), labelled or not.
        out: The folder for the features.
        branch: Which encoder of a run.
        layer: `encoder` (pooled output), `projector`, or the name of a layer.
        size: Side of the images in pixels; that of training if None.
        resize: What their shorter side is scaled to before the centre is cut; if None 8/7 of `size`, and `size` itself
            where that is at most 64.
        precision: `bf16` is faster where the processor supports it.
        batch_size: Images at a time.
        format: `parquet` and `csv` write one file more into the folder.
        root: Folder of torchvision's data sets.
        download: Let torchvision fetch what is missing.
        device: Where to run.
        quiet: Show no progress.
    """
    if format not in FORMS:
        raise ConfigError(f"there is no format '{format}'.{nearest(format, FORMS)} Formats: {', '.join(FORMS)}.")
    check_output_folder(out)
    if format == "parquet":
        require_pyarrow("--format parquet")  # before hours of encoding
    display = Display(quiet=quiet or distributed.rank() > 0)
    encoder = load(model, branch, layer=layer, size=size, resize=resize, device=device)
    source = open_images(data, model, display, root=root, download=download)
    store = store_features(encoder, source, Path(out), display, precision=precision, batch_size=batch_size)
    if format != "npy" and distributed.rank() == 0:
        (write_parquet if format == "parquet" else write_csv)(store)
    return store
