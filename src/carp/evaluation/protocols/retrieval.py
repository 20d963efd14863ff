"""`carp eval retrieval`: rank a database of images for every query, as on revisited Oxford and Paris."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from carp.errors import DataError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from carp.evaluation.ranked.ground_truth import GroundTruth
    from carp.evaluation.ranked.ranking import Judged
    from carp.evaluation.ranked.retrieval_scores import Truth
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace
    from carp.images.source import Openable, Source
    from carp.images.sources.paper.paper_datasets import Dataset

_USUAL_SIDES = 1024, 768  # of the published images, in pixels

# DINO's instructions, which the paper "strictly follows" and the authors' commands repeat
_DINO: dict[str, Any] = {"multi_scale": True, "max_side": 512, "boxes": False}


class RetrievalSettings(PresetSettings):
    """Settings of `carp eval retrieval`."""

    presets = {"paper": _DINO, "authors": _DINO}  # noqa: RUF012 - a ClassVar of the base

    truth: str | Path | None = Field(
        None,
        description="A published ground truth (gnd_roxford5k.pkl, or the same content as JSON), or a relevance file "
        "(.csv; with --queries also .json). Default: images of the same class are relevant.",
    )
    queries: str | Path | None = Field(
        None, description="Query images. Default: every image of the database is a query for the others."
    )
    multi_scale: bool = Field(False, description="Extract features at three scales instead of one.")
    max_side: int | None = Field(
        None, ge=1, description="Shrink images whose longer side exceeds this. None keeps the original size."
    )
    boxes: bool | None = Field(True, description="Crop published queries to their boxes.")
    whiten: str | Path | None = Field(None, description="Other images to learn a whitening from.")
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1, 5, 10), min_length=1, description="Depths at which the precision is measured."
    )


class Retrieval(Protocol[RetrievalSettings]):
    """Every query should find its relevant images first."""

    name, title, position = "retrieval", "Retrieval", 50
    summary = "Search a database of images for each query."
    settings_type = RetrievalSettings
    needs = "images"
    headline = r"map_(medium|hard)"
    in_paper = {name: f"dataset:{name}" for name in ("roxford5k", "rparis6k")}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "Openable", test: None, work: "Workspace") -> "Result":  # noqa: ARG002 - it has no test images
        """Rank the images of `data` for every query; with a published ground truth, `data` also holds the queries."""
        from carp.evaluation.ranked.ground_truth import read_ground_truth
        from carp.evaluation.ranked.original_sizes import take_original_sizes
        from carp.evaluation.ranked.retrieval_scores import retrieval
        from carp.evaluation.ranked.whitening import fit_whitening
        from carp.evaluation.workspace import with_origin
        from carp.features.scales import ONE_SCALE, THREE_SCALES
        from carp.images.sources.paper.ranked_sets import ranked_set
        from carp.images.sources.subset import by_name

        chosen = self.settings
        work.required_encoder()  # before the images are opened
        database = queries = work.open_images(data)
        published, given = ranked_set(data), chosen.truth
        if published is not None and given is None and chosen.queries is None:
            given = _published_truth(published, database)
        boxes, name = None, None
        if given is not None and chosen.queries is None and Path(given).suffix.lower() != ".csv":
            truth = read_ground_truth(Path(given))
            name = _name_of(truth)
            if published is not None and given != chosen.truth and name != published.name:
                raise DataError(
                    f"{given} has {len(truth.queries):,} queries and {len(truth.database):,} images, not "
                    f"{published.test.images:,} and {published.train.images:,}: it is not the ground truth of {data}. "
                    "To use it as it is, give the folder of the images as the data, and the file with --truth."
                )
            queries = by_name(database, truth.queries, named_by=str(given))
            database = by_name(database, truth.database, named_by=str(given))
            levels: Truth = truth.levels()
            boxes = truth.boxes if chosen.boxes else None
        else:
            if chosen.queries is not None:
                queries = work.open_images(chosen.queries)
            levels = {"": _judged(queries, database, given)}
        scales = THREE_SCALES if chosen.multi_scale else ONE_SCALE
        take = partial(take_original_sizes, work, scales=scales, max_side=chosen.max_side)
        features, origin = take(database)
        asked = features if queries is database else take(queries, boxes=boxes)[0]
        whitening = None if chosen.whiten is None else fit_whitening(take(work.open_images(chosen.whiten))[0])
        result = retrieval(asked, features, levels, ks=chosen.k, whitening=whitening)
        settings = {
            "truth": "same class" if given is None else Path(given).name,
            "multi_scale": chosen.multi_scale,
            "max_side": chosen.max_side,
            "boxes": boxes is not None,
        }
        described = {
            **({"name": name} if name else {}),
            "train": origin.data["name"],
            "fingerprints": [origin.data["fingerprint"]],
        }
        return with_origin(replace(result, settings={**result.settings, **settings}), origin, described)

    def work(self, sizes: Sizes) -> Work:
        """Every image passes through the encoder at its own size, once per scale."""
        from carp.features.scales import ONE_SCALE, THREE_SCALES

        scales = THREE_SCALES if self.settings.multi_scale else ONE_SCALE
        longer, shorter = _USUAL_SIDES
        scale = 1.0 if self.settings.max_side is None else min(1.0, self.settings.max_side / longer)
        pixels = longer * shorter * scale**2 * sum(factor**2 for factor in scales)
        images = sizes.train + sizes.test
        return Work(images * pixels, sizes.train * sizes.test * sizes.features)


def _published_truth(published: "Dataset", images: "Source") -> Path:
    """Return the ground truth that belongs to a published dataset."""
    from carp.images.sources.paper.ranked_sets import folder_of, ground_truth_file

    if not published.truth:
        raise DataError(
            f"{published.source('')} has no ground truth of relevant images: use it with `carp eval "
            f"{published.protocols[0]}`."
        )
    return ground_truth_file(published, folder_of(images))


def _name_of(truth: "GroundTruth") -> str | None:
    """Return the published dataset that has as many queries and images; None for any other ground truth."""
    from carp.images.sources.paper.paper_datasets import DATASETS

    sizes = len(truth.queries), len(truth.database)
    rows = (row for row in DATASETS if row.truth)
    return next((row.name for row in rows if (row.test.images, row.train.images) == sizes), None)


def _judged(queries: "Source", database: "Source", relevance: str | Path | None) -> "Sequence[Judged]":
    """Return the relevant images of every query: from a relevance file, or those of the same class."""
    from carp.evaluation.ranked.ground_truth import SameClass, read_relevance
    from carp.images.labels import single_labels, unlabelled
    from carp.images.sources.subset import names_of

    alone = queries is database
    if relevance is not None:
        return read_relevance(Path(relevance), names_of(queries), names_of(database), leave_self_out=alone)
    for part in (queries, database):
        if part.labels is None:
            raise DataError(
                f"{str(unlabelled(part)).removesuffix('.')}; or name the relevant images of every query with --truth "
                "FILE.csv (docs/protocols.md)."
            )
    labels = single_labels(queries, "retrieval without a relevance file"), single_labels(database, "retrieval")
    if queries.classes != database.classes:
        raise DataError(
            f"{queries.name} and {database.name} have different classes: give a relevance file with truth=."
        )
    return SameClass(*labels, leave_self_out=alone)
