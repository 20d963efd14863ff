"""Checks whether a run can work on this machine, before anything is written."""

import torch

from carp.compute import distributed
from carp.config import FREE_KEYS, Config
from carp.errors import ConfigError, DataError
from carp.images.loading.order import check_batch_size
from carp.images.source import Source
from carp.training.micro_batch import check_division
from carp.training.planning.memory_check import check_memory


def check_run(config: Config, source: Source, device: torch.device) -> None:
    """Raise if there are too few images for a batch or its shares, too little memory, or processes that disagree."""
    check_batch_size(len(source), config.batch_size)
    check_division(config)
    check_memory(config, device)
    _check_agreement(config, source)


def _check_agreement(config: Config, source: Source) -> None:
    """Raise unless all processes have the same settings and images; otherwise they would train different models."""
    settings = config.model_dump_json(exclude=set(FREE_KEYS))
    gathered = distributed.gather([settings, source.fingerprint, len(source)])
    for number, (other, *images) in enumerate(gathered):
        if images != gathered[0][1:]:
            raise DataError(
                f"{source.name} is not the same for all processes: {gathered[0][2]} images for process 0, {images[1]} "
                f"for process {number}{', other names or contents' if images[1] == gathered[0][2] else ''}. Give all "
                "processes the same images."
            )
        if other != gathered[0][0]:
            raise ConfigError(
                f"process {number} and process 0 were started with different settings. Give all processes the same "
                "settings."
            )
