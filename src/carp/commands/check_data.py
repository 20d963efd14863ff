"""`carp data check`: are these images fit to train on?"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from carp.config import DataSettings, LoaderSettings, resolve_part
from carp.config.recipe import read_settings
from carp.console.progress import Display
from carp.console.quantities import counted, duration
from carp.errors import ConfigError, DataError, StorageError
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.scan import Range, Scan, scan
from carp.images.inspect.throughput import measure_throughput
from carp.images.opening import open_images
from carp.images.source import Openable
from carp.images.sources.subset import at_random

_LISTED = 10  # broken images, classes and groups of duplicates that are named on the screen


@dataclass(frozen=True)
class DataCheck:
    """What there is to know about a set of images."""

    name: str
    images: int  # in the whole source
    global_size: int
    found: Scan  # in the images that were looked at
    seconds_to_read: float | None  # once, before the first epoch; None when there was nothing to measure
    seconds_an_epoch: dict[int, float]  # decoding and augmenting, by number of workers
    skipped: dict[str, int] = field(default_factory=dict)  # files beside the images, by suffix

    @property
    def ok(self) -> bool:
        """Whether every image that was looked at can be read."""
        return not self.found.broken

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        values = asdict(self)
        found = values.pop("found")
        return {"ok": self.ok, **values, "looked_at": found.pop("images"), **found}

    def lines(self) -> Iterator[str]:
        """Everything as text."""
        found = self.found
        part = f", {found.images:,} of them looked at" if found.images < self.images else ""
        yield f"images       {self.images:,} in {self.name}{part}"
        yield f"formats      {', '.join(f'{name} {count:,}' for name, count in found.formats.items()) or 'none'}"
        if found.width and found.height:
            yield f"width        {_words(found.width)} pixels"
            yield f"height       {_words(found.height)} pixels"
        yield f"bytes        {_words(found.bytes_each)}; {found.bytes_in_all / 2**20:,.1f} MiB in all"
        yield from _listed(
            "classes", f"{len(found.classes) or 'no labels'}", [f"{n}: {c:,}" for n, c in found.classes.items()]
        )
        broken = [f"{bad.place}: {bad.reason}" for bad in found.broken]
        empty = f", {found.empty:,} of them empty files" if found.empty else ""
        yield from _listed("broken", f"{len(broken):,} cannot be read{empty}" if broken else "none", broken)
        surplus = sum(group.count - 1 for group in found.duplicates)
        groups = [f"{group.count} × {', '.join(group.places)}" for group in found.duplicates]
        yield from _listed(
            "duplicates", f"{surplus:,} in {counted(len(groups), 'group')}" if groups else "none", groups
        )
        if found.small:
            yield f"small        {found.small:,} have a side of at most half of global_size={self.global_size}"
        yield f"epoch        {self._time()}"

    def _time(self) -> str:
        if self.seconds_to_read is None:
            return "not measured: too few images can be read"
        times = [
            duration(seconds) + (f" with {counted(workers, 'worker')}" if workers else "")
            for workers, seconds in self.seconds_an_epoch.items()
        ]
        before = f"; {duration(self.seconds_to_read)} to read them once" if self.seconds_to_read else ""
        return f"about {', '.join(times)} for the views alone, estimated from a few{before}"


def check_data(
    data: Openable,
    recipe: str | Path | None = None,
    *,
    limit: int | None = None,
    quiet: bool = True,
    **overrides: Any,
) -> DataCheck:
    """Read and decode every image, and measure how long an epoch of views takes.

    Args:
        data: A folder of images, `embedded:shapes`, an image array [N, H, W, 3], or a source.
        recipe: Name of the recipe that the images are meant for, or a YAML file; `folder` when None.
        limit: Look at so many images only, chosen at random.
        quiet: Show no progress.
        **overrides: Any setting of the configuration.

    Returns:
        What was found; `ok` is whether every image can be read.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, received {limit}.")
    display = Display(quiet=quiet)
    values = read_settings(recipe, overrides)
    where = resolve_part(DataSettings, values)
    source = open_images(data, display, kind=where.source, root=where.root, download=where.download)
    config = resolve_part(LoaderSettings, values, num_images=len(source))
    part = at_random(source, limit or len(source), seed=0)
    with pixel_limit(config.max_image_pixels):
        with display.counting("checking images", len(part)) as progress:
            found = scan(part, view_size=config.global_size, progress=progress)
        found = replace(found, broken=[replace(bad, index=int(part.indices[bad.index])) for bad in found.broken])
        result = DataCheck(
            source.name, len(source), config.global_size, found, None, {}, dict(getattr(source, "skipped", {}))
        )
        try:
            pace = measure_throughput(part, config)
        except StorageError:
            raise
        except DataError:  # hardly anything can be read: that is told already
            return result
    return replace(result, seconds_to_read=pace.once * len(source), seconds_an_epoch=pace.epoch(len(source)))


def _words(values: Range) -> str:
    if values.min == values.max:
        return f"{values.min:,}"
    return f"{values.min:,} to {values.max:,}, median {values.median:,}"


def _listed(what: str, head: str, items: list[str]) -> Iterator[str]:
    """A line, then the first items below it."""
    yield f"{what:<13}{head}"
    yield from (f"  {item}" for item in items[:_LISTED])
    if len(items) > _LISTED:
        yield f"  … and {len(items) - _LISTED:,} more (--json lists all)"
