"""`start_share: auto`: how much of its start a run keeps, by how well the start knows the images.

Weights that recognise most views of the images describe them well and have much to lose: half of them is kept. Weights
that recognise few have little to lose, so the teacher follows the student alone (docs/decisions/0009).
"""

from pathlib import Path

import torch

from carp.compute import distributed
from carp.config import Config
from carp.console.progress import Display
from carp.console.quantities import counted
from carp.encoders.starting_point import read_start
from carp.evaluation.during_training.label_free import Progress, recognition
from carp.images.decoding.decode import pixel_limit
from carp.images.source import Source
from carp.images.sources.subset import at_random
from carp.model.encoder import build_encoder
from carp.runs.run_folder import config_of

SAMPLE = 256  # images; the more there are, the harder it is to recognise a view
FEWEST = 64  # images; among fewer, any encoder recognises most views
KNOWN = 0.5  # share of the views that weights recognise if they know the images


def with_measured_start_share(
    config: Config, source: Source, device: torch.device, folder: Path, display: Display
) -> Config:
    """Return the configuration with no share of the start if the start does not know the images.

    The share that `config` has is kept if it does, and if there are too few images to measure it. A run that was begun
    keeps its share. The size of the views counts: an encoder may know images of 96 pixels and not of 32.
    """
    if (begun := config_of(folder)) is not None:
        return config.model_copy(update={"start_share": begun.start_share})
    if len(source) < FEWEST:
        display.say(f"too few images to measure how well {config.start} knows them: start_share={config.start_share:g}")
        return config
    sample = at_random(source, SAMPLE, seed=0)
    with display.counting(f"measuring how well {config.start} knows the images", None) as counter:
        recognised = _recognised(config, sample, device, counter)
    share = config.start_share if recognised >= KNOWN else 0.0
    half = f"at least half, so the teacher stays halfway to {config.start}" if share else "less than half"
    display.say(
        f"{config.start} recognises {recognised:.0%} of random views among {counted(len(sample), 'image')} of "
        f"{config.global_size} pixels, {half}: start_share={share:g}"
    )
    return config.model_copy(update={"start_share": share})


def _recognised(config: Config, sample: Source, device: torch.device, progress: Progress) -> float:
    """The share of views of a sample that the start recognises, as the first process measures it."""
    assert config.start is not None
    encoder = build_encoder(config)
    encoder.load_state_dict(read_start(config.start).tensors, strict=False)  # the counters of batch norm stay
    with pixel_limit(config.max_image_pixels):
        value = recognition(encoder.eval().to(device), sample, config, device, progress).share
    found: float = distributed.gather(value)[0]
    return found
