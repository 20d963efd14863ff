"""One step of the recipe at its real size of views, network and prototypes: its memory, and the time of its phases."""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from carp.compute.device import available_memory
from carp.config import Config
from carp.console.quantities import counted, duration, in_bytes
from carp.images.decoding.decode import pixel_limit
from carp.images.loading.in_memory import hold_in_memory, is_held
from carp.images.loading.loader import Batch, make_loader
from carp.model.carp import Carp
from carp.model.loss import carp_loss
from carp.readiness.finding import Finding, judged
from carp.readiness.subject import Subject, few_images
from carp.training.loop import build_model
from carp.training.optimiser import build_optimiser
from carp.training.planning.estimate import estimate
from carp.training.schedules import Schedules
from carp.training.step import Stepper

_IMAGES = {"cpu": 8, "cpu, large": 2, "other": 64}  # of an undivided batch
_LARGE = 2**26  # bytes of activations of one image
_MORE = 1.3  # times the estimate: what the allocator, the workspaces of convolutions and the libraries may add
_LIBRARIES = 256 * 2**20  # bytes, on the CPU: code that is loaded and buffers that are made with the first step


def check_step(subject: Subject) -> Iterator[Finding]:
    """Yield the peak memory of a step against the estimate of `--dry-run`, and where its time goes."""
    config, device = _few(subject), subject.device
    source = few_images(subject, config.batch_size)
    with pixel_limit(config.max_image_pixels):
        source = hold_in_memory(source, config.global_size) if is_held(config) else source
        loader = make_loader(source, config)
        start = time.perf_counter()
        (batch,) = loader.batches(0, 1)
        loading = time.perf_counter() - start

    def first_step() -> tuple[Carp, Stepper]:
        model = build_model(config, device).train()
        stepper = Stepper(model, build_optimiser(model, config), Schedules(config, 1), config, device)
        stepper(batch)
        return model, stepper

    try:
        peak, (model, stepper) = peak_bytes(device, first_step)
    except torch.OutOfMemoryError:
        yield Finding("peak memory", "fail", "a step does not fit into the memory of the device", "lower micro_batch")
        return
    yield _memory(config, device, peak)
    yield _profile(model, stepper, batch, config, loading)


def _few(subject: Subject) -> Config:
    """Limit the batch to one micro-batch, or a few images; everything else is the recipe's."""
    config = subject.config
    images = config.micro_batch or _IMAGES["other"]
    if subject.device.type == "cpu":
        each = estimate(config.model_copy(update={"batch_size": 2, "micro_batch": None})).activation_bytes // 2
        images = _IMAGES["cpu, large" if each > _LARGE else "cpu"]
    changes = {
        "batch_size": min(config.batch_size, images),
        "micro_batch": None,
        "workers": 0,
        "max_bad_share": 1.0,
        "prototypes": "replicated",
        "prototype_shards": None,
    }
    return config.model_copy(update=changes)


def _memory(config: Config, device: torch.device, peak: int | None) -> Finding:
    needs = estimate(config).total_bytes
    if peak is None:
        return Finding("peak memory", "n/a", "cannot be measured on this system")
    allowed = _MORE * needs + (_LIBRARIES if device.type == "cpu" else 0)
    return judged(
        "peak memory",
        peak <= allowed,
        f"a step of {counted(config.batch_size, 'image')} took {in_bytes(peak)}, `--dry-run` estimates "
        f"{in_bytes(needs)}; {in_bytes(available_memory(device))} is still free",
        "lower micro_batch: the estimate of --dry-run is too low for this device",
        otherwise="warn",
        values={"measured_bytes": peak, "estimated_bytes": needs},
    )


def peak_bytes(device: torch.device, work: Callable[[], Any]) -> tuple[int | None, Any]:
    """Do some work; return how much memory it took at its peak, and its result. None where that is not known."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return torch.cuda.max_memory_allocated(device) - before, result
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None, work()
    with suppress(OSError):  # resets the peak to the present size; otherwise that of earlier work counts
        Path("/proc/self/clear_refs").write_text("5")
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    result = work()
    words = Path("/proc/self/status").read_text().split()
    return max(0, 1024 * int(words[words.index("VmHWM:") + 1]) - before), result


class PhaseClock:
    """Adds up the time that is spent in phases; waits for the device at their ends."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._starts = device, dict[str, float]()
        self.seconds: dict[str, float] = {}

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def start(self, phase: str) -> Callable[..., None]:
        """Return a hook that starts a phase."""
        return lambda *_: self._starts.__setitem__(phase, self._now())

    def stop(self, phase: str) -> Callable[..., None]:
        """Return a hook that ends a phase."""

        def add(*_: Any) -> None:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + self._now() - self._starts[phase]

        return add

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        self.start(name)()
        yield
        self.stop(name)()


def _profile(model: Carp, stepper: Stepper, batch: Batch, config: Config, loading: float) -> Finding:
    """Time one more step by phases; the backward pass is what none of the others accounts for."""
    clock = PhaseClock(stepper.device)
    optimiser, branches = stepper.optimiser, {"student": model.student}
    if not model.siamese:
        branches["teacher"] = model.teacher
    hooks = [
        optimiser.register_step_pre_hook(clock.start("optimiser")),
        optimiser.register_step_post_hook(clock.stop("optimiser")),
    ]
    for name, branch in branches.items():
        for module in (branch.encoder, branch.projector):
            hooks.append(module.register_forward_pre_hook(clock.start(name)))
            hooks.append(module.register_forward_hook(clock.stop(name)))
    with clock.phase("step"):
        stepper(batch)
    for hook in hooks:
        hook.remove()
    with clock.phase("head"):
        _head(model, stepper, config)
    phases = clock.seconds
    total = phases.pop("step")
    phases["backward"] = max(0.0, total - sum(phases.values()))
    shares = ", ".join(f"{name} {duration(seconds)} ({seconds / total:.0%})" for name, seconds in phases.items())
    return Finding(
        "phases",
        "pass",
        f"a step of {counted(config.batch_size, 'image')} takes {duration(total)}: {shares}; one process prepares "
        f"their views in {duration(loading)}",
        values={"step": total, **phases, "loading": loading},
    )


def _head(model: Carp, stepper: Stepper, config: Config) -> None:
    """Run the head alone, on embeddings of the same shape."""
    views = 2 + config.local_views
    z = torch.randn(views, config.batch_size, config.embedding, device=stepper.device, requires_grad=True)
    prototypes, partition = model.student.assigner(), stepper.partition(0)
    carp_loss(z, z[:2].detach(), prototypes, prototypes.detach(), partition).total.backward()  # type: ignore[no-untyped-call]
