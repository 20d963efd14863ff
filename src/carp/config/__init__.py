"""The configuration of a run: one flat model ↔ YAML recipe ↔ `key=value` overrides ↔ keyword arguments.

Every key means the same in all four. The flat model `Config` is composed of parts; code takes the part that it needs,
such as `EncoderSettings` or `ViewSettings`, and a `Config` is an instance of all of them. Values that depend on the
number of images may be written `auto`; `resolve` replaces them by the rule in `sizes_for`, so a `Config` holds plain
values only. `micro_batch: auto` and `precision: auto` depend on the machine: `training/preparation.py` replaces them.
`start_share: auto` depends on the start and the images: `evaluation/during_training/start_share.py` measures them.
"""

from carp.config.auto_sizes import Sizes, sizes_for
from carp.config.batch_settings import BatchSettings, LengthSettings
from carp.config.device_settings import DeviceSettings, ProcessSettings
from carp.config.field_types import IMAGENET_MEAN, IMAGENET_STD, MAX_IMAGE_PIXELS, SMALL_IMAGE
from carp.config.image_settings import (
    DataSettings,
    DecodingSettings,
    LoaderSettings,
    QuarantineSettings,
    SizeSettings,
    ViewSettings,
)
from carp.config.model_settings import EncoderSettings, HeadSettings, ModelSettings, check_block_size
from carp.config.optimiser_settings import OptimisationSettings, OptimiserSettings
from carp.config.readings import READINGS, ReadingSettings
from carp.config.resolve import AUTOMATIC, check_keys, form_of, resolve, resolve_part
from carp.config.run_config import FREE_KEYS, GROUPS, METRICS_KEYS, Config, decisive, differences, recorded
from carp.config.run_settings import RunSettings
from carp.config.start_settings import StartSettings

__all__ = [
    "AUTOMATIC",
    "FREE_KEYS",
    "GROUPS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "MAX_IMAGE_PIXELS",
    "METRICS_KEYS",
    "READINGS",
    "SMALL_IMAGE",
    "BatchSettings",
    "Config",
    "DataSettings",
    "DecodingSettings",
    "DeviceSettings",
    "EncoderSettings",
    "HeadSettings",
    "LengthSettings",
    "LoaderSettings",
    "ModelSettings",
    "OptimisationSettings",
    "OptimiserSettings",
    "ProcessSettings",
    "QuarantineSettings",
    "ReadingSettings",
    "RunSettings",
    "SizeSettings",
    "Sizes",
    "StartSettings",
    "ViewSettings",
    "check_block_size",
    "check_keys",
    "decisive",
    "differences",
    "form_of",
    "recorded",
    "resolve",
    "resolve_part",
    "sizes_for",
]
