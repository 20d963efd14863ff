"""The contract of a protocol: its settings, what it needs, and how it turns features or images into a result.

A protocol is one file in `carp/evaluation/protocols`: a settings model and a subclass of `Protocol`. Defining the
class registers it; `carp eval`, `carp.evaluate` and `carp table` know nothing else about it. Such a file imports
without torch, so that `carp eval NAME --help` is fast: `run` imports the numerical code.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationInfo, field_validator

from carp.checked_model import CheckedModel
from carp.evaluation.paper_tables.work_amount import Sizes, Work

if TYPE_CHECKING:
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace

Needs = Literal["features", "images", "boxes"]
WithoutTest = Literal["leave one out", "the same images", "hold out"]

# Options of feature extraction that a protocol uses, by what it needs; all have `device`
OPTIONS: Mapping[Needs, tuple[str, ...]] = {
    "features": ("layer", "size", "resize", "interpolation", "precision", "root", "download", "device"),
    "images": ("layer", "root", "download", "device"),
    "boxes": ("device",),
}


class Settings(CheckedModel):
    """Settings of a protocol; the description of a field is its help.

    Values may come as text from the command line. A field that holds several values accepts one (`k=20`) and
    comma-separated text (`--k 10,20`); a field that may be None accepts `None` and `null`.
    """

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, str) and value in ("None", "null") and type(None) in get_args(annotation):
            return None
        if get_origin(annotation) is not tuple:
            return value
        if isinstance(value, str):
            return tuple(part.strip() for part in value.strip().removeprefix("[").removesuffix("]").split(","))
        return tuple(value) if isinstance(value, Iterable) and not isinstance(value, Mapping) else (value,)

    def extraction(self) -> dict[str, Any]:
        """Options of feature extraction that the settings imply where the user gives none (see `presets.py`)."""
        return {}


S = TypeVar("S", bound=Settings)


class Protocol(ABC, Generic[S]):
    """A way to evaluate an encoder. Class attributes describe it; an instance has settings and runs."""

    name: ClassVar[str]
    """The name in `carp eval NAME` and in result files."""
    title: ClassVar[str]
    """The name in tables."""
    summary: ClassVar[str]
    """One line for `carp eval --help`."""
    settings_type: ClassVar[type[Settings]]
    position: ClassVar[int] = 100
    """Place in help and tables: the smallest comes first."""
    former_names: ClassVar[tuple[str, ...]] = ()
    """Names in result files of earlier versions."""

    needs: ClassVar[Needs] = "features"
    """`features`: features and labels, extracted or stored. `images`: images in their original sizes, with their names.
    `boxes`: the encoder itself, and images with boxes."""
    several_labels: ClassVar[bool] = False
    """Whether an image may have several labels."""
    without_test: ClassVar[WithoutTest] = "hold out"
    """What is tested if there are no test images: every training image against all others, the training images
    themselves, or a fifth of every class, held out."""
    branches: ClassVar[tuple[str, ...]] = ("student", "teacher")
    """Encoders of a run that `carp eval` evaluates by default."""
    part_of_all: ClassVar[bool] = False
    """Whether `carp eval all` includes it."""
    settings_for_all: ClassVar[Mapping[str, Any]] = {}
    """Its settings there."""
    predicts: ClassVar[bool] = False
    """Whether it predicts a class for every test image."""
    temporary_folder: ClassVar[str] = ""
    """Sub-folder of the output folder that keeps the state of an interrupted run; deleted once results are written."""

    headline: ClassVar[str] = ""
    """Regular expression for the values that the paper's tables show; `carp table --all` also shows all others."""
    number_letter: ClassVar[str] = ""
    """The name in tables of the number in a value such as `top1@20`: `k` for k = 20."""
    in_paper: ClassVar[Mapping[str, str]] = {}
    """The data of the paper's tables, by their name there: what `--data` has to be. ROOT is the folder of datasets."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:
            REGISTRY[cls.name] = cls

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def check(self, num_images: int, *, leave_one_out: bool) -> None:
        """Raise if the settings do not suit the training images; called before their features are extracted."""

    @abstractmethod
    def run(self, data: Any, test: Any, work: "Workspace") -> "Result":
        """Evaluate one encoder.

        Args:
            data: The training images as `LabelledFeatures`; for a protocol that needs images or boxes, what the caller
                gave as data.
            test: The test images as `LabelledFeatures`; None for leave-one-out, and for a protocol that needs images or
                boxes.
            work: The encoder, and folders and progress bars for the protocol's own use.

        Returns:
            Values and settings. For labelled features the runner adds where they come from; other protocols describe
            their data and their model themselves.
        """

    def work(self, sizes: Sizes) -> Work:
        """Estimate the work of an evaluation; by default, that of extracting the features."""
        return Work((sizes.train + sizes.test) * sizes.pixels)

    def notes(self, result: "Result") -> list[str]:
        """Return what the reader of a result should know about it, one line each."""
        del result
        return []

    @classmethod
    def column_name(cls, value_name: str, settings: Mapping[str, Any]) -> str:
        """Return the name of a value in tables, where settings make it another measure."""
        del settings
        return value_name


AnyProtocol = Protocol[Any]
REGISTRY: dict[str, type[AnyProtocol]] = {}
