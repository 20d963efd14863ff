"""`carp eval kmeans`: spherical k-means, as in the paper's appendix."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from carp.evaluation.labelled_features import LabelledFeatures
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace


class KmeansSettings(PresetSettings):
    """Settings of `carp eval kmeans`."""

    presets = {  # noqa: RUF012 - a ClassVar of the base
        "paper": {},
        "authors": {
            "scale": "standard",
            "redos": 10,
            "images_per_cluster": 256,
            "seeds": (1234,),  # faiss's own default
            "interpolation": "bilinear",
        },
    }

    scale: Literal["unit", "standard"] = Field(
        "unit",
        description="Normalisation of the features: unit divides each vector by its length; standard subtracts from "
        "each feature its mean over the training images and divides by its deviation.",
    )
    num_clusters: int | None = Field(None, ge=1, description="Number of clusters. Default: the number of classes.")
    iterations: int = Field(100, ge=1, description="Iterations after each start.")
    redos: int = Field(20, ge=1, description="Number of starts; faiss keeps the one with the best objective.")
    images_per_cluster: int | None = Field(
        None,
        ge=1,
        description="Fit on at most this many images per cluster, chosen by faiss (whose own default is 256). "
        "Default: all images.",
    )
    seeds: tuple[int, ...] = Field(
        (0, 1, 2), min_length=1, description="Repeat everything for each of these seeds; values are means over them."
    )


class Kmeans(Protocol[KmeansSettings]):
    """Clusters of the training images are compared with the classes of the test images."""

    name, title, position = "kmeans", "k-means", 20
    summary = "Cluster the images and compare the clusters with their classes."
    settings_type = KmeansSettings
    without_test = "the same images"
    part_of_all = predicts = True
    headline = r"nmi|ami|ari"
    in_paper = {  # noqa: RUF012 - a ClassVar of the base
        "imagenet": "dataset:imagenet:10%",  # the appendix; the text has 1%
        "cifar10": "dataset:cifar10",
        "cifar100": "dataset:cifar100",
        "gtsrb": "dataset:gtsrb",
    }

    def run(self, data: "LabelledFeatures", test: "LabelledFeatures", work: "Workspace") -> "Result":
        """Cluster the training images and score the clusters of the test images."""
        from carp.evaluation.clustering import kmeans

        with work.display.counting(self.name, None) as progress:
            return kmeans(
                data.features,
                data.labels,
                test.features,
                test.labels,
                **self.settings.model_dump(exclude={"preset"}),
                predict=work.predict,
                progress=progress,
            )

    def work(self, sizes: Sizes) -> Work:
        """Every iteration compares the images with all clusters."""
        chosen = self.settings
        clusters = chosen.num_clusters or sizes.classes
        images = min(sizes.train, (chosen.images_per_cluster or sizes.train) * clusters)
        passes = len(chosen.seeds) * chosen.redos * chosen.iterations
        return replace(super().work(sizes), multiply_adds=passes * images * clusters * sizes.features)

    def notes(self, result: "Result") -> list[str]:
        """Name the seeds with empty clusters."""
        empty = {run["seed"]: int(run["empty_train"]) for run in result.details["seeds"] if run["empty_train"]}
        return [
            f"{self.name}, {result.model_name}: with seed {seed}, {count} clusters contain no training image."
            for seed, count in empty.items()
        ]
