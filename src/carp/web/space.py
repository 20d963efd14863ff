"""A space: the features of the images by one encoder, and what can be asked of them.

Shapes: M images, F features, D embedding, S images of a sample.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.encoders.assignments import partitions
from carp.encoders.frozen_encoder import Encoder
from carp.encoders.load import TRAINED, load_encoder, split_branch
from carp.errors import DataError, ModelError
from carp.exploration.layout import spread_rows
from carp.exploration.prototype_images import PrototypeImages, embeddings_of, prototype_images
from carp.features.extract import Features
from carp.features.feature_options import ENCODER, PROJECTOR, FeatureOptions, Precision
from carp.images.decoding.decode import decode
from carp.runs.run_folder import is_run, open_run
from carp.similarity.quick_search import QuickSearch
from carp.similarity.vectors import unit_length

PROTOTYPES_FROM = 20_000  # images that prototypes are compared with
_PARTITIONS = 4


@dataclass(frozen=True)
class SpacePrototypes:
    """The prototypes of a run and the images around them."""

    rows: NDArray[np.int64]
    """The images that were compared, [S]."""
    found: PrototypeImages
    """Its rows count these images."""
    embeddings: Features
    """Of unit length, [S, D]."""
    prototypes: Features
    """Of unit length, [K, D]."""
    block_size: int


@dataclass
class Space:
    """Features of all images by one encoder."""

    name: str
    features: Features
    """[M, F], memory-mapped."""
    key: str
    """Changes with the features."""
    folder: Path | None
    """Where its map is kept; None to keep nothing."""
    model: str | None = None
    """The run or weights behind it, if that is known."""
    branch: str = "teacher"
    layer: str = ENCODER
    precision: Precision = "fp32"
    device: str = "auto"
    load: Callable[[], Encoder] | None = None
    """Loads the encoder; None if it is not known."""
    _searching: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _encoding: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def search(self) -> QuickSearch:
        """Finds neighbours; made once, when it is first needed."""
        with self._searching:
            return self._search

    @cached_property
    def _search(self) -> QuickSearch:
        return QuickSearch(self.features)

    @property
    def has_prototypes(self) -> bool:
        """Whether the encoder is a trained branch of a run that can still be read."""
        trained = split_branch(self.branch)[0] in TRAINED and self.layer in {ENCODER, PROJECTOR}
        return self.model is not None and trained and is_run(self.model)

    def encode(self, stored: bytes, name: str) -> Features:
        """The features [F] of an image that is not among those explored; an image that cannot be read is an error."""
        pixels = decode(stored, name)
        with self._encoding:
            found: Features = self._encoder.embed([pixels], precision=self.precision)[0]
        return found

    @cached_property
    def _encoder(self) -> Encoder:
        if self.load is None:
            raise DataError(f"the encoder behind {self.name} is not known, so other images cannot be compared with it.")
        return self.load()

    def prototypes(self) -> SpacePrototypes:
        """The prototypes of the run; an error without a run."""
        if not self.has_prototypes or self.model is None:
            raise ModelError(f"prototypes belong to a run, and {self.name} has features of another encoder.")
        run = open_run(self.model)
        branch = load_encoder(self.model, self.branch, FeatureOptions(layer=PROJECTOR, device=self.device))
        rows = spread_rows(len(self.features), PROTOTYPES_FROM)
        some = np.ascontiguousarray(self.features[rows])
        embeddings = some if self.layer == PROJECTOR else embeddings_of(branch, some)
        found = prototype_images(
            embeddings, branch.prototypes, partitions(run.config, run.config.seed, _PARTITIONS), twins=12
        )
        return SpacePrototypes(
            rows, found, unit_length(embeddings), unit_length(branch.prototypes), run.config.block_size
        )
