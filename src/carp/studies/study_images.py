"""The images of a study: opened once, and held in memory once for all its jobs where they are small."""

from dataclasses import dataclass
from typing import Any, Self

from carp.config import Config
from carp.console.progress import Display
from carp.evaluation.labelled_features import check_classes
from carp.evaluation.nearest_neighbours import check_neighbours
from carp.images.decoding.decode import pixel_limit
from carp.images.labels import single_labels
from carp.images.loading.in_memory import hold_in_memory, is_held
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.images.sources.paper.dataset_source import counterpart


@dataclass(frozen=True)
class StudyImages:
    """Images to train on, which are also the bank for k-NN, and images to classify; None is leave-one-out."""

    train: Source
    test: Source | None

    @classmethod
    def open(
        cls, data: Openable, train: Source, test: Openable | None, config: Config, display: Display, *, k: int
    ) -> Self:
        """Open the test images, and raise now if k-NN will not be possible after training.

        `train` is `data`, opened. A published dataset has its own test images.
        """
        if test is None and isinstance(data, str):
            test = counterpart(data)
        opened = (
            None
            if test is None
            else open_images(test, display, root=config.root, download=config.download, cache_gb=config.cache_gb)
        )
        single_labels(train)
        check_neighbours(k, len(train), leave_one_out=opened is None)
        if opened is not None:
            single_labels(opened)
            check_classes(train, opened)
        return cls(train, opened)

    def held(self, config: Config, display: Display) -> "StudyImages":
        """Return the same images in memory, if every run would read them into memory anyway.

        Sources with unreadable images stay as they are, so that every run keeps its own record of these.
        """
        if not is_held(config):
            return self
        parts = [None if part is None else _held(part, config, display) for part in (self.train, self.test)]
        return StudyImages(parts[0] or self.train, parts[1])

    def described(self) -> dict[str, Any]:
        """Return the identity of the images as plain values."""
        return {
            name: None if source is None else {"images": len(source), "fingerprint": source.fingerprint}
            for name, source in (("data", self.train), ("test", self.test))
        }


def _held(source: Source, config: Config, display: Display) -> Source:
    with display.counting("reading images", len(source)) as counter, pixel_limit(config.max_image_pixels):
        held = hold_in_memory(source, config.global_size, progress=counter)
    return source if held.unreadable else held
