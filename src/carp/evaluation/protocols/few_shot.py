"""`carp eval few-shot`: classifiers trained on a few labelled images per class, as in the paper's appendix."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from carp.errors import ConfigError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol
from carp.images.views.interpolation import Interpolation

if TYPE_CHECKING:
    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.linear.crop_training import CropTraining
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace

_PASSES = 20  # of a linear classifier; a support vector machine takes about as many

Shots = Annotated[int, Field(ge=1)] | Literal["full"]


class FewShotSettings(PresetSettings):
    """Settings of `carp eval few-shot`."""

    presets = {  # noqa: RUF012 - a ClassVar of the base
        "paper": {},
        "authors": {
            "lr": 0.3,
            "weight_decay": 1e-6,
            "crops": True,
            "crop_interpolation": "bilinear",
            "best_epoch": True,
            "interpolation": "bilinear",
        },
    }

    shots: tuple[Shots, ...] = Field(
        (1, 2, 4, 8, 16, "full"),
        min_length=1,
        description="Number of training images per class: 1 or more, or full for all images.",
    )
    runs: int = Field(5, ge=1, description="Number of times that images are drawn; values are means over these runs.")
    lr: float = Field(0.03, gt=0, description="Learning rate of the linear classifier (one label per image).")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of the linear classifier.")
    crops: bool = Field(
        False,
        description="Train the linear classifier on random crops and flips of the images instead of stored features: "
        "hours, not minutes.",
    )
    crop_interpolation: Interpolation = Field(
        "bicubic", description="How random crops are resized: bicubic, as in pretraining, or bilinear."
    )
    best_epoch: bool = Field(
        False,
        description="Report the best epoch of the linear classifier on the test images instead of the last. This is "
        "optimistic.",
    )
    seed: int = Field(
        0, description="Seed of the draws, and of the initial weights and the order of a linear classifier."
    )


class FewShot(Protocol[FewShotSettings]):
    """A linear classifier on a few images per class; a support vector machine per class for several labels."""

    name, title, position = "few-shot", "Few-shot", 40
    summary = "Train classifiers on a few labelled images per class."
    settings_type = FewShotSettings
    several_labels = True
    part_of_all = predicts = True
    temporary_folder = "few-shot"
    headline, number_letter = r"(map|top1)_(n\d+|full)", "n"
    in_paper = {"voc07": "dataset:voc07", "inat2018": "dataset:inat2018"}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "LabelledFeatures", test: "LabelledFeatures", work: "Workspace") -> "Result":
        """Train on a few training images per class, several times, and test on all test images."""
        from carp.evaluation.few_shot.few_labels import few_shot

        crops = self._crops(data, work) if self.settings.crops and data.labels.ndim == 1 else None
        with work.display.counting(self.name, None) as progress:
            return few_shot(
                data.features,
                data.labels,
                test.features,
                test.labels,
                **self.settings.model_dump(exclude={"preset", "crops", "crop_interpolation"}),
                crops=crops,
                images=data.images,
                predict=work.predict,
                progress=progress,
            )

    def work(self, sizes: Sizes) -> Work:
        """Every draw trains for about `_PASSES` passes over its images, forwards and backwards, and is tested."""
        images = [
            sizes.train if n == "full" else self.settings.runs * min(sizes.train, n * sizes.classes)
            for n in self.settings.shots
        ]
        tests = sum(1 if n == "full" else self.settings.runs for n in self.settings.shots)
        crops = _PASSES * sum(images) if self.settings.crops and not sizes.several_labels else 0
        products = (3 * _PASSES * sum(images) + tests * sizes.test) * sizes.classes * sizes.features
        return Work((sizes.train + sizes.test + crops) * sizes.pixels, products)

    def _crops(self, data: "LabelledFeatures", work: "Workspace") -> "CropTraining":
        """Return what is needed to train on crops of the training images."""
        from carp.evaluation.linear.crop_training import CropTraining

        if data.source is None or work.encoder is None:
            raise ConfigError(
                "crops=true trains on random crops of the images, received stored features: give the images, or add "
                "crops=false."
            )
        return CropTraining(
            encoder=work.encoder.module,
            source=data.source,
            size=work.encoder.size,
            device=work.encoder.device,
            precision=work.options.precision,
            interpolation=self.settings.crop_interpolation,
            weights_hash=f"{work.encoder.hash} {work.encoder.layer}",
            state=work.folder / self.temporary_folder,
            warn=work.display.warn_once,
        )
