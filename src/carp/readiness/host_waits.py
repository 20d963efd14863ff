"""How often a step makes the host wait for the device. Every wait leaves a GPU idle."""

import warnings
from collections.abc import Iterator

import torch

from carp.config import Config
from carp.images.loading.loader import Batch
from carp.readiness.finding import Finding, judged
from carp.readiness.pretended_device import pretended, waits
from carp.readiness.subject import Subject, small_run
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.schedules import Schedules
from carp.training.step import Stepper

_MOST = 2  # one for the head's check, one for the loss
_IMAGES = 2


def check_waits(subject: Subject) -> Iterator[Finding]:
    """Count the waits of the second step: on a GPU those that CUDA reports, elsewhere those of a pretended device."""
    config = small_run(subject.config, _IMAGES)
    if subject.device.type == "cuda":
        count, how = _on_cuda(config, subject.device), "counted by CUDA"
    else:
        try:
            count, how = _pretended(config), "counted on the CPU, as if it were a GPU"
        except (RuntimeError, NotImplementedError, TypeError) as error:  # an operation that cannot be imitated
            yield Finding("host waits", "n/a", f"cannot be counted without a GPU for {config.encoder}: {error}")
            return
    yield judged(
        "host waits",
        count <= _MOST,
        f"{count} per step (at most {_MOST}), {how}",
        "the step is slower than it should be on a GPU: report this encoder as a bug in CARP",
        otherwise="warn",
        values={"waits": count},
    )


def _stepper(config: Config, device: torch.device) -> Stepper:
    model = build_model(config, device).train()
    return Stepper(model, build_optimiser(model, config), Schedules(config, _IMAGES), config, device)


def _batch(config: Config, step: int) -> Batch:
    sizes = [config.global_size] * 2 + [config.local_size] * config.local_views
    generator = torch.Generator().manual_seed(step)
    views = [torch.randint(0, 256, (_IMAGES, 3, size, size), dtype=torch.uint8, generator=generator) for size in sizes]
    return Batch(step, 0, torch.arange(_IMAGES).numpy(), views, _IMAGES)


def _pretended(config: Config) -> int:
    """Count on a device that is not there; half precision and memory layout make no difference to the waits."""
    config = config.model_copy(update={"channels_last": False, "precision": "fp32"})
    with pretended() as device:
        stepper = _stepper(config, device)
        stepper(_batch(config, 0))
        waits.clear()
        stepper(_batch(config, 1))
        return len(waits)


def _on_cuda(config: Config, device: torch.device) -> int:
    stepper = _stepper(config, device)
    stepper(_batch(config, 0))
    torch.cuda.synchronize(device)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            stepper(_batch(config, 1))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in seen)
