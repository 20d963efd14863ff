"""`carp data check`: check whether images are fit for training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from carp.config import DataSettings, LoaderSettings, resolve_part
from carp.console.progress import Display
from carp.encoders.starting_point import settings_with_start
from carp.errors import ConfigError, DataError, StorageError
from carp.images.decoding.decode import pixel_limit
from carp.images.inspect.data_check import DataCheck
from carp.images.inspect.scan import scan
from carp.images.inspect.throughput import measure_throughput
from carp.images.open_source import open_images
from carp.images.source import Openable
from carp.images.sources.subset import at_random


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
        data: Any image source that `train` accepts.
        recipe: Name of the recipe that the images are meant for, or a YAML file; `folder` if None.
        limit: Check at most this many images, chosen at random.
        quiet: Show no progress.
        **overrides: Any setting of the configuration.

    Returns:
        The findings; `ok` is true if every checked image can be read.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, received {limit}. Leave it out to check all images.")
    display = Display(quiet=quiet)
    values = settings_with_start(recipe, overrides)
    where = resolve_part(DataSettings, values)
    source = open_images(
        data, display, kind=where.source, root=where.root, download=where.download, cache_gb=where.cache_gb
    )
    config = resolve_part(LoaderSettings, values, num_images=len(source))
    sample = at_random(source, limit or len(source), seed=0)
    with pixel_limit(config.max_image_pixels):
        with display.counting("checking images", len(sample)) as progress:
            found = scan(sample, view_size=config.global_size, progress=progress)
        found = replace(found, broken=[replace(bad, index=int(sample.indices[bad.index])) for bad in found.broken])
        result = DataCheck(source.name, len(source), config.global_size, found, skipped=dict(source.skipped))
        try:
            speed = measure_throughput(sample, config)
        except StorageError:
            raise
        except DataError:  # too few images can be read, which `found` reports
            return result
    return replace(result, seconds_to_read=speed.once * len(source), seconds_an_epoch=speed.epoch(len(source)))
