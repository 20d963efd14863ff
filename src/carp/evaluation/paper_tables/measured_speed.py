"""Measures the speed of this machine: a few images through the encoder, and a matrix product.

Shapes: N images, S side.
"""

import time

import numpy as np

from carp.encoders.frozen_encoder import Encoder
from carp.evaluation.paper_tables.work_amount import Work
from carp.features.encoding_speed import time_batches
from carp.features.extract import feature_batches
from carp.features.feature_options import Precision
from carp.images.decoding.decode import pixel_limit
from carp.images.source import Source
from carp.images.sources.array import ArraySource
from carp.images.sources.subset import at_random

_SECONDS = 1.0  # per measurement, approximately
_IMAGES = 512
_LARGEST_BATCH, _SMALLEST_BATCH, _BATCH_PIXELS = 256, 8, 8 * 224**2
_SIDE = 768  # of the matrices


class Speed:
    """The speed of an encoder and of float32 matrix products.

    Attributes:
        per_pixel: Seconds per pixel of the encoder's input, without decoding.
        num_features: Length of its vectors.
    """

    def __init__(self, encoder: Encoder, precision: Precision) -> None:
        self._encoder, self._precision = encoder, precision
        noise_NSS3 = np.random.default_rng(0).integers(0, 256, (_IMAGES, encoder.size, encoder.size, 3), dtype=np.uint8)
        self.per_pixel, self.num_features = self._encode(ArraySource(noise_NSS3))
        self._per_product = _seconds_per_product()

    def seconds(self, work: Work, per_pixel: float | None = None) -> float:
        """Return the estimated time of some work; `per_pixel` is the value that `measure` returned for its images."""
        return work.pixels * (per_pixel or self.per_pixel) + work.multiply_adds * self._per_product

    def measure(self, source: Source) -> float:
        """Decode and encode some images of a source for about a second; return the seconds per pixel of the input."""
        return self._encode(at_random(source, _IMAGES, seed=0))[0]

    def _encode(self, source: Source) -> tuple[float, int]:
        """Return the seconds per pixel of the encoder's input, and the number of features."""
        batch_size = min(_LARGEST_BATCH, max(_SMALLEST_BATCH, _BATCH_PIXELS // self._encoder.size**2))
        batches = feature_batches(
            self._encoder.module,
            source,
            size=self._encoder.size,
            device=self._encoder.device,
            batch_size=batch_size,
            precision=self._precision,
            resize=self._encoder.resize,
            interpolation=self._encoder.interpolation,
        )
        with pixel_limit(self._encoder.max_pixels):
            per_image, features = time_batches(batches, _SECONDS)
        return per_image / self._encoder.size**2, features


def _seconds_per_product() -> float:
    """Return the seconds per multiply-add."""
    square = np.ones((_SIDE, _SIDE), dtype=np.float32)
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        np.dot(square, square)
        taken.append(time.perf_counter() - start)
    return min(taken) / _SIDE**3
