"""`carp eval linear`: linear classifiers on the frozen encoder, over random crops or over stored features."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from carp.errors import ConfigError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.protocol import Protocol, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace


class LinearSettings(Settings):
    """Settings of `carp eval linear`."""

    cached: bool = Field(
        False, description="Train on stored features instead of random crops of the images: minutes, not hours."
    )
    optimisers: tuple[Literal["sgd", "lars"], ...] = Field(
        ("sgd", "lars"), min_length=1, description="Optimisers of the grid: sgd, lars."
    )
    lrs: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0),
        min_length=1,
        description="Learning rates of the grid for 256 images; they are multiplied by batch_size / 256.",
    )
    weight_decays: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.0, 1e-6), min_length=1, description="Weight decays of the grid."
    )
    epochs: int = Field(100, ge=1, description="Passes over the training images.")
    batch_size: int = Field(256, ge=1, description="Images per step.")
    held_out: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Share of the training images of every class that is held out to select the classifier.",
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
        grid: dict[str, Any] = self.settings.model_dump(exclude={"cached"})
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
        grid = len(chosen.optimisers) * len(chosen.lrs) * len(chosen.weight_decays) * (1 if chosen.cached else 2)
        epochs = 0 if chosen.cached else chosen.epochs
        return Work(
            ((1 + epochs) * sizes.train + sizes.test) * sizes.pixels,
            3 * grid * chosen.epochs * sizes.train * sizes.classes * sizes.features,
        )

    def notes(self, result: "Result") -> list[str]:
        """Name the classifier that was chosen."""
        chosen, count = result.details["chosen"], len(result.details["grid"])
        words = f"{chosen['optimiser']}, lr {chosen['lr']:g}, weight decay {chosen['weight_decay']:g}"
        return [
            f"{self.name}, {result.model_name}: the best of {count} classifiers on the held-out images is {words}; the "
            "result file lists them all."
        ]

    @classmethod
    def column_name(cls, value_name: str, settings: "Mapping[str, Any]") -> str:
        """Mark values of classifiers on stored features, which see no random crops."""
        return f"{value_name}_cached" if settings.get("cached") else value_name
