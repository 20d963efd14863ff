"""`carp explore`: explore images in a browser, as an encoder sees them."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from carp.console.progress import Display
from carp.errors import ConfigError, MissingExtraError
from carp.features.feature_options import FeatureOptions
from carp.files.outputs import check_output_folder
from carp.images.source import Openable
from carp.similarity.faiss_library import load_faiss

if TYPE_CHECKING:
    from carp.web.server import Explorer


def explore(
    features: str | Path | Sequence[str | Path],
    data: Openable | None = None,
    *,
    out: str | Path | None = None,
    port: int | None = None,
    open: bool = False,  # noqa: A002 - the name of the option
    model: str | Path | None = None,
    branch: str = "teacher",
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> "Explorer":
    """Start a local web application: a map of the images, neighbours, clusters, prototypes, near-duplicates.

    It listens on 127.0.0.1 only, its address contains a random token, and it reads images and features without
    changing them. The map is kept beside the features.

    Args:
        features: Features written by `carp embed`, a run or `RUN@25`, or a .npy file with one vector per image; or
            several of these, for the same images, to compare them.
        data: A folder of images or any other source (docs/data.md). Needed for a run, for a .npy file, and for stored
            features if the images have been moved.
        out: Folder for selections that you save as files or as folders of links. None offers them as downloads.
        port: Port of the server. None is any free port.
        open: Open the page in the default browser.
        model: The encoder that extracted stored features, if it has been moved; it embeds images that you drop.
        branch: Encoder of a run: `teacher` or `student`.
        root: Folder of torchvision's datasets.
        download: Let torchvision download missing datasets.
        device: Where to run the encoder: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show no progress.

    Returns:
        The running server with its `address`. It ends with `close()`, at the end of a `with` block, or with Ctrl-C
        during `wait()`.
    """
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"port must be from 0 to 65535, received {port}.")
    _check_installed("starlette", "uvicorn")
    load_faiss("the explorer")
    from carp.web.answers import Answers
    from carp.web.open_spaces import Opening, open_spaces
    from carp.web.server import Explorer

    if out is not None:
        check_output_folder(out)
    given = [features] if isinstance(features, str | Path) else list(features)
    options = FeatureOptions(root=root, download=download, device=device)
    how = Opening(data, model, branch, options, Display(quiet=quiet))
    images, spaces = open_spaces(given, how)
    explorer = Explorer(Answers(images, spaces, None if out is None else Path(out).expanduser()), port)
    if open:
        explorer.open_browser()
    return explorer


def _check_installed(*packages: str) -> None:
    for name in packages:
        try:
            import_module(name)
        except ImportError:
            raise MissingExtraError(f"the explorer needs {name}. Run `pip install 'carp-ssl[explore]'`.") from None
