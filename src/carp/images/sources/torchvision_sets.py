"""torchvision's datasets by name: `torchvision:CIFAR10`, `torchvision:CIFAR10:test`."""

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from carp.errors import DataError, nearest
from carp.images.decoding.transient import retrying
from carp.images.source import Opening
from carp.images.sources.python_objects import MapStyleSource

_NOT_BY_NAME = frozenset(
    {"FakeData", "ImageFolder", "DatasetFolder", "VisionDataset", "wrap_dataset_for_transforms_v2"}
)


class TorchvisionSource(MapStyleSource):
    """The images of `torchvision:NAME` or `torchvision:NAME:SPLIT`."""

    kind = "torchvision"
    example = "torchvision:NAME"
    claim_order = 50

    @classmethod
    def claims(cls, data: object) -> bool:  # noqa: ARG003
        """Claim nothing: the prefix is needed."""
        return False

    @classmethod
    def open(cls, data: str, how: Opening) -> "TorchvisionSource":
        """Open a dataset in the folder `root`, and download it if requested."""
        word, _, split = data.partition(":")
        name, accepted = f"{cls.kind}:{data}", inspect.signature(_class(word)).parameters
        if how.root is None:
            raise DataError(f"the folder of {name} is unknown: set root=FOLDER, and download=true to download it.")
        arguments = _split(word, split, accepted)
        dataset = make_dataset(word, arguments, name=name, root=how.root, download=how.download)
        return TorchvisionSource(dataset, name=name)


def make_dataset(word: str, arguments: Mapping[str, Any], *, name: str, root: Path, download: bool) -> Any:
    """Return an object of torchvision's class `word`; `name` is its name in messages."""
    maker = _class(word)
    fetches = "download" in inspect.signature(maker).parameters
    if download and not fetches:
        raise DataError(f"torchvision cannot download {word}: put it into {root} by hand and leave out download.")
    make = partial(maker, root=str(root), **arguments, **({"download": download} if fetches else {}))
    try:
        return make() if download else retrying(make, root)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        wanted = "'carp-ssl[eval]'" if package == "scipy" else package
        raise DataError(f"torchvision needs the package {package} for {word}. Run `pip install {wanted}`.") from error
    except ValueError as error:  # a split that does not exist
        raise DataError(f"cannot open {name}: {' '.join(str(error).split())}") from error
    except (RuntimeError, OSError) as error:
        if download:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            remedy = "Try again, or put it there by hand"
            raise DataError(f"cannot download {name} to {root}: {cause}. {remedy}.") from error
        remedy = "add download=true to download it" if fetches else "put it there by hand"
        raise DataError(f"{name} is not in the folder {root}: set root= to its folder, or {remedy}.") from error


def _class(name: str) -> Any:
    import torchvision.datasets  # noqa: PLC0415 - takes seconds, and few commands need it

    names = sorted(set(torchvision.datasets.__all__) - _NOT_BY_NAME)
    if name not in names:
        same = next((other for other in names if other.lower() == name.lower()), None)
        hint = f" Did you mean '{same}'?" if same else nearest(name, names)
        raise DataError(f"torchvision has no dataset '{name}'.{hint} Names are those of torchvision.datasets.")
    return getattr(torchvision.datasets, name)


def _split(name: str, split: str, accepted: Any) -> dict[str, Any]:
    """Return the argument for a split: a flag `train` or a word; the training images where none is named."""
    if "train" in accepted and "split" not in accepted:
        if split not in {"", "train", "test"}:
            raise DataError(f"{name} has the splits train and test, received '{split}': give one of them.")
        return {"train": split != "test"}
    if "split" in accepted:
        if split:
            return {"split": split}
        if accepted["split"].default is inspect.Parameter.empty:
            raise DataError(f"{name} needs a split: write torchvision:{name}:SPLIT, as in torchvision's documentation.")
        return {}
    if split:
        raise DataError(f"{name} has no splits, received '{split}': write torchvision:{name}.")
    return {}
