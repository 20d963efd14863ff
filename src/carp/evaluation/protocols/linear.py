"""`carp eval linear`: linear classifiers on the frozen encoder, over random crops or over stored features."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from carp.errors import ConfigError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol
from carp.images.views.interpolation import Interpolation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace


class LinearSettings(PresetSettings):
    """Settings of `carp eval linear`."""

    presets = {  # noqa: RUF012 - a ClassVar of the base
        "paper": {  # iBOT's grid
            "lrs": tuple(float(f"{digit}e{power}") for power in range(-4, 1) for digit in range(1, 10)),
            "choose_on": "test",
            "crop_interpolation": "bilinear",
        },
        "authors": {
            "optimisers": ("lars",),
            "lrs": (1.0,),
            "weight_decays": (0.0,),
            "lr_scaling": "none",
            "batch_size": 2048,  # 4 GPUs × 128 images × 4 steps
            "choose_on": "test",
            "crop_interpolation": "bilinear",
        },
    }

    cached: bool = Field(
        False, description="Train on stored features instead of random crops of the images: minutes, not hours."
    )
    optimisers: tuple[Literal["sgd", "lars"], ...] = Field(
        ("sgd", "lars"), min_length=1, description="Optimisers of the grid: sgd, lars."
    )
    lrs: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0),
        min_length=1,
        description="Learning rates of the grid; see lr_scaling.",
    )
    weight_decays: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.0, 1e-6), min_length=1, description="Weight decays of the grid."
    )
    lr_scaling: Literal["linear", "none"] = Field(
        "linear", description="linear multiplies the learning rates by batch_size / 256; none uses them as they are."
    )
    epochs: int = Field(100, ge=1, description="Passes over the training images.")
    batch_size: int = Field(256, ge=1, description="Images per step.")
    choose_on: Literal["held-out", "test"] = Field(
        "held-out",
        description="Images that select the classifier: training images that are held out, after the last epoch; or "
        "the test images, after every epoch, as published evaluations do. The latter is optimistic.",
    )
    held_out: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of the training images of every class that is held out to select the classifier.",
    )
    crop_interpolation: Interpolation = Field(
        "bicubic", description="How random crops are resized: bicubic, as in pretraining, or bilinear."
    )
    seed: int = Field(0, description="Seed of the initial weights, the order, the crops and the images held out.")


class Linear(Protocol[LinearSettings]):
    """A grid of linear classifiers; the best on training images that were held out is tested."""

    name, title, position = "linear", "Linear", 30
    summary = "Train linear classifiers on the frozen encoder."
    settings_type = LinearSettings
    part_of_all = predicts = True
    settings_for_all = {"cached": True}  # noqa: RUF012 - a ClassVar of the base
    temporary_folder = "linear"
    headline = r"top1(_cached)?"
    in_paper = {"imagenet": "dataset:imagenet"}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "LabelledFeatures", test: "LabelledFeatures", work: "Workspace") -> "Result":
        """Train the grid, choose a classifier and test it."""
        from carp.evaluation.linear.over_crops import linear_on_images
        from carp.evaluation.linear.probe import linear_probe

        parts = data.features, data.labels, test.features, test.labels
        grid: dict[str, Any] = self.settings.model_dump(exclude={"preset", "cached", "crop_interpolation"})
        if self.settings.cached:
            with work.display.counting(self.name, None) as progress:
                return linear_probe(*parts, **grid, predict=work.predict, progress=progress)
        if data.source is None or work.encoder is None:
            raise ConfigError(
                "linear trains on random crops of the images, received stored features: give the images, or add "
                "--cached (cached=True in Python)."
            )
        with work.display.counting(self.name, None) as progress:
            return linear_on_images(
                *parts,
                **grid,
                crop_interpolation=self.settings.crop_interpolation,
                encoder=work.encoder.module,
                source=data.source,
                indices=data.images,
                size=work.encoder.size,
                device=work.encoder.device,
                precision=work.options.precision,
                weights_hash=f"{work.encoder.hash} {work.encoder.layer}",
                state=work.folder / self.temporary_folder,
                predict=work.predict,
                progress=progress,
                warn=work.display.warn_once,
            )

    def work(self, sizes: Sizes) -> Work:
        """Every epoch encodes the training images, unless features are stored, and trains one grid or two."""
        chosen = self.settings
        grids = 2 if chosen.choose_on == "held-out" and not chosen.cached else 1
        grid = len(chosen.optimisers) * len(chosen.lrs) * len(chosen.weight_decays) * grids
        epochs = 0 if chosen.cached else chosen.epochs
        return Work(
            ((1 + epochs) * sizes.train + sizes.test) * sizes.pixels,
            3 * grid * chosen.epochs * sizes.train * sizes.classes * sizes.features,
        )

    def notes(self, result: "Result") -> list[str]:
        """Name the classifier that was chosen."""
        chosen, count = result.details["chosen"], len(result.details["grid"])
        words = f"{chosen['optimiser']}, lr {chosen['lr']:g}, weight decay {chosen['weight_decay']:g}"
        if "best_epoch" in chosen:
            return [
                f"{self.name}, {result.model_name}: the best of {count} classifiers on the test images is {words}, "
                f"after {chosen['best_epoch']} epochs. The value is optimistic, because the test images made this "
                "choice."
            ]
        return [
            f"{self.name}, {result.model_name}: the best of {count} classifiers on the held-out images is {words}; the "
            "result file lists them all."
        ]

    @classmethod
    def column_name(cls, value_name: str, settings: "Mapping[str, Any]") -> str:
        """Mark values of classifiers on stored features, which see no random crops."""
        return f"{value_name}_cached" if settings.get("cached") else value_name
