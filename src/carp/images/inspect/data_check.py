"""The result of `carp data check`, as values and as text."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from carp.console.quantities import counted, duration
from carp.images.inspect.scan import Range, Scan

_LISTED = 10  # broken images, classes and groups of duplicates that are printed


@dataclass(frozen=True)
class DataCheck:
    """The findings of `carp data check`.

    Attributes:
        name: The name of the source.
        images: The number of images in the source.
        global_size: The side of the views that image sizes are compared with.
        found: The properties of the checked images: all of them, or a random sample.
        seconds_to_read: Time to read all images into memory, once, before the first epoch; 0 for photographs, which
            are read in every epoch. None if too few images can be read to measure anything.
        seconds_an_epoch: Time per epoch to decode and augment, by number of worker processes.
        skipped: The number of files that are not images, by suffix.
    """

    name: str
    images: int
    global_size: int
    found: Scan
    seconds_to_read: float | None = None
    seconds_an_epoch: dict[int, float] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every checked image can be read."""
        return not self.found.broken

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        values = asdict(self)
        found = values.pop("found")
        return {"ok": self.ok, **values, "looked_at": found.pop("images"), **found}

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        found = self.found
        sample = f", {found.images:,} of them checked" if found.images < self.images else ""
        yield f"images       {self.images:,} in {self.name}{sample}"
        yield f"formats      {', '.join(f'{name} {count:,}' for name, count in found.formats.items()) or 'none'}"
        if found.width and found.height:
            yield f"width        {_range(found.width)} pixels"
            yield f"height       {_range(found.height)} pixels"
        yield f"bytes        {_range(found.bytes_each)}; {found.bytes_in_all / 2**20:,.1f} MiB in total"
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
        return f"about {', '.join(times)} for the views alone, estimated from a sample{before}"


def _range(values: Range) -> str:
    if values.min == values.max:
        return f"{values.min:,}"
    return f"{values.min:,} to {values.max:,}, median {values.median:,}"


def _listed(what: str, head: str, items: list[str]) -> Iterator[str]:
    """Yield a line, then the first items."""
    yield f"{what:<13}{head}"
    yield from (f"  {item}" for item in items[:_LISTED])
    if len(items) > _LISTED:
        yield f"  … and {len(items) - _LISTED:,} more (--json lists all)"
