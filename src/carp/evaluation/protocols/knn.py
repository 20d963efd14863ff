"""`carp eval knn`: weighted k-nearest-neighbour classification, as in the paper's appendix."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace


class KnnSettings(PresetSettings):
    """Settings of `carp eval knn`."""

    presets = {"paper": {}, "authors": {}}  # noqa: RUF012 - a ClassVar of the base; both are the default

    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (10, 20, 100, 200),
        min_length=1,
        description="Number of nearest images that vote; one number or several. A default that is larger than the "
        "number of images is left out.",
    )
    temperature: float = Field(
        0.07,
        gt=0,
        description="τ of the vote exp(similarity / τ): the smaller it is, the more the nearest images count.",
    )


class Knn(Protocol[KnnSettings]):
    """The nearest training images vote for the class of a test image."""

    name, title, position = "knn", "k-NN", 10
    summary = "Classify each image by its nearest neighbours."
    settings_type = KnnSettings
    without_test = "leave one out"
    part_of_all = predicts = True
    headline, number_letter = r"top1_k20", "k"
    in_paper = {  # noqa: RUF012 - a ClassVar of the base
        name: f"dataset:{name}"
        for name in ("imagenet", "pets", "flowers", "aircraft", "cars", "country211", "food101", "stl10", "gtsrb")
    }

    def check(self, num_images: int, *, leave_one_out: bool) -> None:
        """Raise if there are fewer images than the requested neighbours."""
        from carp.evaluation.nearest_neighbours import check_neighbours

        for k in self.settings.k if self._is_given else ():
            check_neighbours(k, num_images, leave_one_out=leave_one_out)

    def run(self, data: "LabelledFeatures", test: "LabelledFeatures | None", work: "Workspace") -> "Result":
        """Classify the test images."""
        from carp.evaluation.nearest_neighbours import knn

        k = self.settings.k
        if not self._is_given:
            most = len(data.images) - (test is None)
            k = tuple(n for n in k if n <= most) or (max(1, most),)
        with work.display.counting(self.name, None) as progress:
            return knn(
                data.features,
                data.labels,
                None if test is None else test.features,
                None if test is None else test.labels,
                k=k,
                temperature=self.settings.temperature,
                predict=work.predict,
                progress=progress,
            )

    def work(self, sizes: Sizes) -> Work:
        """Every test image is compared with every training image."""
        return replace(super().work(sizes), multiply_adds=sizes.train * sizes.test * sizes.features)

    def notes(self, result: "Result") -> list[str]:
        """Name the default k for which there are too few images."""
        used = result.settings["k"]
        omitted = [] if self._is_given else [k for k in self.settings.k if k not in used]
        if not omitted:
            return []
        return [
            f"{self.name}: there are too few images for k = {_listed(omitted)}; evaluated with k = {_listed(used)}."
        ]

    @property
    def _is_given(self) -> bool:
        """Whether the user chose k."""
        return "k" in self.settings.model_fields_set


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in numbers)
