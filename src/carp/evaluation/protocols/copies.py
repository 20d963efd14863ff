"""`carp eval copies`: find the original of every altered image, as on Copydays."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from carp.errors import ConfigError, DataError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.presets import PresetSettings
from carp.evaluation.protocol import Protocol

if TYPE_CHECKING:
    from carp.evaluation.ranked.copy_sets import CopySet
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace
    from carp.images.source import Openable


class CopiesSettings(PresetSettings):
    """Settings of `carp eval copies`."""

    presets = {"paper": {}, "authors": {}}  # noqa: RUF012 - a ClassVar of the base; both are the default

    distractors: str | Path | None = Field(None, description="Further images in the database that are not originals.")
    whiten: str | Path | None = Field(None, description="Other images to learn a whitening from.")
    side: int = Field(320, ge=1, description="Images are stretched to a square with sides of this length, in pixels.")
    depth: int | None = Field(20, ge=1, description="Number of results per query that count; None counts all.")


class Copies(Protocol[CopiesSettings]):
    """An altered image should find its original first."""

    name, title, position = "copies", "Copy detection", 60
    former_names = ("copy-detection",)
    summary = "Find the original of each altered copy."
    settings_type = CopiesSettings
    needs = "images"
    headline = r"map_strong"
    in_paper = {"copydays": "dataset:copydays"}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "Openable", test: None, work: "Workspace") -> "Result":  # noqa: ARG002 - it has no test images
        """Search the originals in `data` for every copy."""
        from carp.evaluation.ranked.copy_scores import copy_detection
        from carp.evaluation.ranked.copy_sets import read_copies
        from carp.evaluation.ranked.original_sizes import take_original_sizes
        from carp.evaluation.ranked.whitening import fit_whitening
        from carp.evaluation.workspace import with_origin
        from carp.images.sources.paper.ranked_sets import folder_of, ranked_set
        from carp.images.sources.subset import by_name

        if not isinstance(data, str | Path):
            raise ConfigError(
                f"copies needs a folder, received {type(data).__name__}: give Copydays, or a folder that `carp data "
                "attack` wrote."
            )
        chosen = self.settings
        work.required_encoder()  # before the images are opened
        published = ranked_set(data)
        source = None if published is None else work.open_images(data)
        found = read_copies(Path(data) if source is None else folder_of(source))
        name = _name_of(found)
        if published is not None and name != published.name:
            raise DataError(
                f"{data} has {len(found.originals):,} originals and {_strong(found):,} strong copies, not "
                f"{published.train.images:,} and {published.test.images:,}: it is incomplete, or not this dataset. "
                "To use it as it is, give its folder as the data."
            )
        source = source or work.open_images(data)
        take = partial(take_original_sizes, work, square=chosen.side)
        originals, origin = take(by_name(source, found.originals, named_by=str(data)))
        copies, _ = take(by_name(source, [copy.name for copy in found.copies], named_by=str(data)))
        distractors = None if chosen.distractors is None else take(work.open_images(chosen.distractors))[0]
        whitening = None if chosen.whiten is None else fit_whitening(take(work.open_images(chosen.whiten))[0])
        result = copy_detection(
            copies, originals, found, distractors=distractors, whitening=whitening, depth=chosen.depth
        )
        described = {
            **({"name": name} if name else {}),
            "train": origin.data["name"],
            "fingerprints": [origin.data["fingerprint"]],
        }
        return with_origin(replace(result, settings={**result.settings, "side": chosen.side}), origin, described)

    def work(self, sizes: Sizes) -> Work:
        """Every image passes through the encoder as a square of `side` pixels."""
        return Work((sizes.train + sizes.test) * self.settings.side**2, sizes.train * sizes.test * sizes.features)


def _name_of(found: "CopySet") -> str | None:
    """Return the published dataset that has as many originals and strong copies; None for any other copies."""
    from carp.images.sources.paper.paper_datasets import DATASETS

    rows = (row for row in DATASETS if row.is_ranked and not row.truth)
    sizes = len(found.originals), _strong(found)
    return next((row.name for row in rows if (row.train.images, row.test.images) == sizes), None)


def _strong(found: "CopySet") -> int:
    return sum(copy.attack == "strong" for copy in found.copies)
