"""What a sample of images shows: unreadable files, copies, defects of single images."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from carp.advice.image_quality import DEFECTS, Quality, measure
from carp.console.quantities import counted
from carp.errors import MissingExtraError, UnreadableImageError
from carp.features.extract import Extracted
from carp.images.decoding.decode import Pixels
from carp.images.inspect.identical import first_identical
from carp.images.inspect.scan import Scan, scan
from carp.images.loading.quarantine import nothing_to_read
from carp.images.source import Source, read
from carp.images.sources.subset import Subset, at_random
from carp.similarity.copy_groups import group_copies
from carp.similarity.near_copies import find_copies

MOST = 2000  # images
_SECONDS = 45.0
_TIMED = 8  # images that show how long one takes
_FEWEST = 64
_EXAMPLES, _PRINTED = 12, 3
_AGREE = 0.95  # of pixels; two shots of one scene mostly stay below (docs/search.md)
_PROPERTY = 0.5  # what is true of more than half of the images is a property of them, not a defect


@dataclass(frozen=True)
class Issue:
    """A kind of defect, and the images that have it."""

    name: str
    rule: str
    count: int
    share: float
    """Of the images that were looked at and can be read."""
    examples: list[str]
    """The worst ones."""
    indices: list[int]
    """Their numbers in the source."""
    counts: bool
    """Whether it speaks against the images: not if it is harmless, or true of more than half of them."""


@dataclass(frozen=True)
class NearCopies:
    """Near-duplicates in a sample."""

    looked_at: int
    surplus: int
    """Images to remove if one of every group is kept."""
    groups: list[list[str]]
    """The places of the first few groups."""
    encoder: str
    note: str = ""
    """Why they were not searched for."""


@dataclass(frozen=True)
class ImageFindings:
    """Everything that the sample shows."""

    name: str
    images: int
    found: Scan
    issues: list[Issue]
    defective: float
    """The share of readable images with at least one defect that counts."""
    near: NearCopies | None = None

    @property
    def unreadable(self) -> float:
        """The share of images that cannot be read."""
        return len(self.found.broken) / self.found.images

    @property
    def surplus(self) -> float:
        """The share of exact copies that could be removed."""
        return sum(group.count - 1 for group in self.found.duplicates) / self.found.images

    @property
    def side(self) -> int:
        """The shorter side of the median image."""
        sizes = self.found.width, self.found.height
        return min((size.median for size in sizes if size is not None), default=0)

    @property
    def usable(self) -> int:
        """How many of all images can be read and are no exact copies, estimated from the sample."""
        return round(self.images * max(0.0, 1 - self.unreadable - self.surplus))

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        found = asdict(self.found)
        return {
            "name": self.name,
            "images": self.images,
            "looked_at": found.pop("images"),
            "usable": self.usable,
            **found,
            "issues": [asdict(issue) for issue in self.issues],
            "defective": self.defective,
            "near_copies": None if self.near is None else asdict(self.near),
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        found = self.found
        sample = f", {found.images:,} of them looked at, chosen at random" if found.images < self.images else ""
        yield f"images           {self.images:,} in {self.name}{sample}"
        yield f"classes          {len(found.classes) or 'no labels'}"
        if found.width and found.height:
            yield (
                f"size             {found.width.median}×{found.height.median} pixels (median), widths "
                f"{found.width.min} to {found.width.max}, heights {found.height.min} to {found.height.max}"
            )
        broken = [f"{bad.place}: {bad.reason}" for bad in found.broken[:_PRINTED]]
        yield from _row("unreadable", len(found.broken), self.unreadable, "cannot be decoded", broken)
        exact = sum(group.count - 1 for group in found.duplicates)
        groups = [" = ".join(group.places) for group in found.duplicates[:_PRINTED]]
        yield from _row("exact copies", exact, self.surplus, "same bytes as another image", groups)
        yield from self._near_lines()
        for issue in self.issues:
            rule = issue.rule if issue.counts or not issue.count else f"{issue.rule}; not counted as a defect"
            yield from _row(issue.name, issue.count, issue.share, rule, issue.examples[:_PRINTED])

    def _near_lines(self) -> Iterator[str]:
        near = self.near
        if near is None:
            return
        if near.note:
            yield f"near copies      not searched for: {near.note}"
            return
        rule = f"by {near.encoder}, among {counted(near.looked_at, 'image')}"
        groups = [" ~ ".join(group) for group in near.groups[:_PRINTED]]
        yield from _row("near copies", near.surplus, near.surplus / near.looked_at, rule, groups)


def look_at_images(source: Source, *, progress: Callable[[int, int], None] = lambda _done, _all: None) -> ImageFindings:
    """Decode a random sample of the images, as many as fit into a minute, and measure each."""
    sample = at_random(source, _affordable(source), seed=0)
    qualities: dict[int, Quality] = {}

    def look(index: int, pixels: Pixels) -> None:
        qualities[index] = measure(pixels)

    found = scan(sample, view_size=0, progress=progress, look=look)
    order = sorted(qualities)
    measured = [qualities[index] for index in order]
    if not measured:
        raise nothing_to_read(source.name, found.broken)
    issues, bad = list[Issue](), np.zeros(len(measured), dtype=np.bool_)
    for defect in DEFECTS:
        severity = defect.severity(measured)
        flags = severity > 0
        worst = [order[i] for i in np.argsort(-severity, kind="stable") if flags[i]][:_EXAMPLES]
        issue = Issue(
            name=defect.name,
            rule=defect.rule,
            count=int(flags.sum()),
            share=float(flags.mean()),
            examples=[sample.place(index) for index in worst],
            indices=[int(sample.indices[index]) for index in worst],
            counts=not defect.harmless and float(flags.mean()) <= _PROPERTY,
        )
        issues.append(issue)
        bad |= flags & issue.counts
    broken = [replace(one, index=int(sample.indices[one.index])) for one in found.broken]
    return ImageFindings(source.name, len(source), replace(found, broken=broken), issues, float(bad.mean()))


def find_near_copies(source: Subset, extracted: Extracted, encoder: str) -> NearCopies:
    """Search for near-duplicates in a sample whose features are known.

    A group counts if its pixels agree as well: an encoder that knows nothing takes all images for copies.
    """
    looked_at = len(extracted.indices)
    if looked_at < 2:
        return NearCopies(looked_at, 0, [], encoder)
    firsts = first_identical(source, extracted.indices)
    try:
        copies = find_copies(extracted.features, firsts=firsts)
    except MissingExtraError as error:
        return NearCopies(looked_at, 0, [], encoder, note=str(error))
    places = [source.place(int(index)) for index in extracted.indices]
    groups = group_copies(copies, places.__getitem__, lambda row: source.fetch(int(extracted.indices[row])), firsts)
    sure = [group.members for group in groups if group.is_identical or group.agreement >= _AGREE]
    named = [[member.place for member in members[:_EXAMPLES]] for members in sure[:_EXAMPLES]]
    return NearCopies(looked_at, sum(len(members) - 1 for members in sure), named, encoder)


def _affordable(source: Source) -> int:
    """How many images can be looked at; a few are timed where all might take too long."""
    if len(source) <= _FEWEST:
        return len(source)
    few, start = at_random(source, _TIMED, seed=1), time.monotonic()
    for index in range(len(few)):
        try:
            measure(read(few, index))
        except UnreadableImageError:
            continue
    each = (time.monotonic() - start) / len(few)
    return max(_FEWEST, min(MOST, int(_SECONDS / max(each, 1e-6))))


def _row(name: str, count: int, share: float, rule: str, examples: list[str]) -> Iterator[str]:
    if not count:
        yield f"{name:<16} none ({rule})"
        return
    yield f"{name:<16} {count:,} ({share:.1%}; {rule})"
    yield from (f"  e.g. {example}" for example in examples)
