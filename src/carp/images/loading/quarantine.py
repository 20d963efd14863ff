"""Images that cannot be read: which image replaces one, what is recorded, and how many are too many.

Every image is tried whenever it comes up, and replaced by another if it cannot be read. The replacement is a hash of
(seed, epoch, index, attempt), so that what a run sees depends only on the images themselves: not on the number of
workers, an interruption, or the images that were bad before.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from carp.errors import BadImagesError, CheckpointError, DataError
from carp.random import Purpose, key

_MOST_ATTEMPTS = 1000
_DOUBT = math.log(1e12)  # a share is called too large early only if the chance of an error is below 10^-12
_WARNINGS = 3


@dataclass(frozen=True)
class Unreadable:
    """An image that cannot be read."""

    index: int
    place: str
    reason: str


@dataclass
class Misses:
    """The unreadable images of a batch, and how many images were drawn to replace them."""

    unreadable: list[Unreadable] = field(default_factory=list)
    drawn: int = 0
    drawn_unreadable: int = 0

    def extend(self, other: "Misses") -> None:
        """Add those of another part of the batch."""
        self.unreadable += other.unreadable
        self.drawn += other.drawn
        self.drawn_unreadable += other.drawn_unreadable


def substitutes(num_images: int, *, seed: int, epoch: int, index: int) -> Iterator[int]:
    """Yield the images to try one by one instead of image `index`, drawn from all images."""
    for attempt in range(_MOST_ATTEMPTS):
        yield int(key(seed, Purpose.SUBSTITUTE, epoch, index, attempt)) % num_images


def nothing_to_read(name: str, unreadable: Sequence[Unreadable]) -> DataError:
    """Return the error for a source of which no image can be read."""
    first = f"the first is {unreadable[0].place}: {unreadable[0].reason}"
    return DataError(
        f"none of the {len(unreadable):,} images in {name} can be read; {first}. `carp data check` lists the reasons."
    )


def nothing_instead(place: str) -> BadImagesError:
    """Return the error for an image that cannot be replaced."""
    return BadImagesError(
        f"cannot read the image {place}, nor any of the images tried in its place. `carp data check` lists the reasons."
    )


def proves_too_many(drawn: int, unreadable: int, max_share: float) -> bool:
    """Return whether a random sample proves that the share is too large, long before all images were seen.

    Chernoff: if the share is at most s, then n draws have a share r > s with probability at most exp(−n KL(r‖s)).
    """
    if unreadable <= max_share * drawn:
        return False
    if max_share == 0:
        return True
    r, s = unreadable / drawn, max_share
    divergence = r * math.log(r / s) + ((1 - r) * math.log((1 - r) / (1 - s)) if r < 1 else 0)
    return drawn * divergence > _DOUBT


class Quarantine:
    """Records bad images, in a file if one is given, and stops a run that has too many of them."""

    def __init__(
        self,
        num_images: int,
        max_share: float,
        path: Path | None = None,
        *,
        writes: bool = True,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._num_images, self._max_share, self._path, self._warn = num_images, max_share, path, warn
        self._writes = writes  # only one of the processes of a run does
        self._found = {bad.index: bad for bad in _read(path)} if path else {}
        self._drawn = self._drawn_unreadable = self._warned = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, misses: Misses) -> None:
        """Record new bad images; raise if their share is, or is proven to be, larger than allowed."""
        new = {bad.index: bad for bad in misses.unreadable if bad.index not in self._found}
        if new:
            self._found |= new
            if self._path and self._writes:
                _append(self._path, new.values())
            self._warn_about(list(new.values()))
        self._drawn += misses.drawn
        self._drawn_unreadable += misses.drawn_unreadable
        if len(self._found) > self._max_share * self._num_images:
            share = len(self._found) / self._num_images
            self._stop(f"{len(self._found):,} of {self._num_images:,} images ({share:.2g}) cannot be read")
        if proves_too_many(self._drawn, self._drawn_unreadable, self._max_share):
            self._stop(f"{self._drawn_unreadable:,} of {self._drawn:,} images drawn at random cannot be read")

    def summary(self) -> str | None:
        """Return a line for the end of a run, or None if every image could be read."""
        if not self._found:
            return None
        where = f": {self._path}" if self._path else ""
        return f"{len(self._found):,} of {self._num_images:,} images could not be read{where}"

    def _warn_about(self, new: list[Unreadable]) -> None:
        for bad in new[: max(0, _WARNINGS - self._warned)]:
            self._warn(f"cannot read the image {bad.place}: {bad.reason}. It is replaced by another image.")
        if self._warned <= _WARNINGS < self._warned + len(new):
            more = f" {self._path} lists them." if self._path else ""
            self._warn(f"more images cannot be read.{more}")
        self._warned += len(new)

    def _stop(self, what: str) -> None:
        bad = next(iter(self._found.values()))
        listed = f" {self._path} lists those found so far." if self._path else ""
        raise BadImagesError(
            f"{what}, more than max_bad_share={self._max_share:g} allows; one is {bad.place}: {bad.reason}.{listed} "
            "`carp data check` finds all of them. Remove or replace them and start again (with a new --out if the run "
            "has a checkpoint), or raise max_bad_share to resume without them."
        )


def _append(path: Path, new: Iterable[Unreadable]) -> None:
    """Append lines to the file and sync it to the disk."""
    lines = "".join(json.dumps(asdict(bad)) + "\n" for bad in new)
    try:
        with path.open("ab", buffering=0) as file:
            file.write(lines.encode())
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. Free some space, then run the command again."
        ) from error


def _read(path: Path) -> list[Unreadable]:
    """Return the images that the file lists. An incomplete last line is removed: its image will be found again."""
    try:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(path, len(whole))
        return [Unreadable(**json.loads(line)) for line in whole.splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}. Check its permissions.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {type(error).__name__}. Remove it; bad images will be found again."
        ) from error
