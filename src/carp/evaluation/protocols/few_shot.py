"""`carp eval few-shot`: classifiers trained on a few labelled images per class, as in the paper's appendix."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.protocol import Protocol, Settings

if TYPE_CHECKING:
    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace

_PASSES = 20  # of a linear classifier; a support vector machine takes about as many

Shots = Annotated[int, Field(ge=1)] | Literal["full"]


class FewShotSettings(Settings):
    """Settings of `carp eval few-shot`."""

    shots: tuple[Shots, ...] = Field(
        (1, 2, 4, 8, 16, "full"),
        min_length=1,
        description="Number of training images per class: numbers from 1, or full for all images.",
    )
    runs: int = Field(5, ge=1, description="Number of times that images are drawn; values are means over these runs.")
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
    headline, number_letter = r"(map|top1)_(n\d+|full)", "n"
    in_paper = {"voc07": "dataset:voc07", "inat2018": "dataset:inat2018"}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "LabelledFeatures", test: "LabelledFeatures", work: "Workspace") -> "Result":
        """Train on a few training images per class, several times, and test on all test images."""
        from carp.evaluation.few_labels import few_shot

        with work.display.counting(self.name, None) as progress:
            return few_shot(
                data.features,
                data.labels,
                test.features,
                test.labels,
                **self.settings.model_dump(),
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
        products = (3 * _PASSES * sum(images) + tests * sizes.test) * sizes.classes * sizes.features
        return replace(super().work(sizes), multiply_adds=products)
