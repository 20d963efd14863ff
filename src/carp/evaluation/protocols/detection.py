"""`carp eval detection`: fine-tune Faster R-CNN on an encoder, on Pascal VOC."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from carp.errors import ConfigError, DataError
from carp.evaluation.paper_tables.work_amount import Sizes, Work
from carp.evaluation.protocol import Protocol, Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from carp.console.progress import Display
    from carp.evaluation.result import Result
    from carp.evaluation.workspace import Workspace
    from carp.images.source import Openable

_TRAIN, _TEST = ("2007:trainval", "2012:trainval"), ("2007:test",)
_STATE = "detection"  # sub-folder: the state of an interrupted run, and the numbers of finished trials

# Quantities that determine the training time: longer over shorter side of an image; boxes that pass through the last
# stage, with an area of `_STAGE_PIXELS` each; the share of that stage in the work of the whole encoder
_ASPECT, _BOXES_IN_TRAINING, _BOXES_IN_TEST, _STAGE_PIXELS, _LAST_STAGE = 4 / 3, 512, 1000, 224**2, 0.2

Pixels = Annotated[int, Field(gt=0)]


class DetectionSettings(Settings):
    """Settings of `carp eval detection`."""

    iterations: int = Field(24_000, gt=0, description="Steps per trial.")
    batch_size: int = Field(16, gt=0, description="Images per step.")
    trials: int = Field(
        5, gt=0, description="How many times to train, each time with different new layers, order and samples."
    )
    lr: float = Field(0.02, gt=0, description="Learning rate.")
    lr_drops: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        (0.75, 11 / 12), description="Shares of the iterations after which the learning rate falls to a tenth."
    )
    warmup: int = Field(100, ge=0, description="Iterations of linear warm-up.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of SGD.")
    weight_decay: float = Field(1e-4, ge=0, description="Weight decay of all parameters except those of batch norm.")
    sizes: tuple[Pixels, ...] = Field(
        (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800),
        min_length=1,
        description="Possible lengths of the shorter side of a training image, in pixels.",
    )
    max_size: int = Field(1333, gt=0, description="Maximum length of the longer side, in pixels.")
    test_size: int = Field(800, gt=0, description="Length of the shorter side of a test image, in pixels.")
    anchor_sizes: tuple[Pixels, ...] = Field(
        (32, 64, 128, 256, 512), min_length=1, description="Sides of the squares that proposals start from."
    )
    seed: int = Field(0, description="Seed of all random choices.")
    workers: int = Field(2, ge=0, description="Processes that decode images; 0 decodes them in the main process.")
    train: tuple[str, ...] = Field(_TRAIN, min_length=1, description="Parts to train on, each YEAR:LIST.")
    test: tuple[str, ...] = Field(_TEST, min_length=1, description="Parts to test on, each YEAR:LIST.")


class Detection(Protocol[DetectionSettings]):
    """A detector is fine-tuned from the encoder's weights."""

    name, title, position = "detection", "Detection", 70
    summary = "Fine-tune an object detector on Pascal VOC."
    settings_type = DetectionSettings
    needs = "boxes"
    branches = ("teacher",)
    headline = r"ap(50|75)?"
    in_paper = {"voc0712": "ROOT"}  # noqa: RUF012 - a ClassVar of the base

    def run(self, data: "Openable", test: None, work: "Workspace") -> "Result":  # noqa: ARG002 - a setting
        """Train and test a detector several times; an interrupted run resumes."""
        from carp.compute import distributed
        from carp.compute.device import choose_device
        from carp.encoders.exports import open_exportable
        from carp.evaluation.detection.trials import detection
        from carp.evaluation.detection.voc import fingerprint, read_voc
        from carp.images.sources.paper.paper_datasets import VOC0712_SIZES

        if distributed.world_size() > 1:
            raise ConfigError("detection trains in one process: run it without torchrun.")
        if work.model is None:
            raise ConfigError("detection trains on images: give a run folder, or weights with --weights FILE.")
        encoder = open_exportable(work.model, work.branch)
        if not isinstance(data, str | Path) or not Path(data).is_dir():
            raise DataError(f"there is no folder {data}: give the folder that contains VOCdevkit.")
        train, tested = self.settings.train, self.settings.test
        images = [read_voc(Path(data).expanduser(), parts) for parts in (train, tested)]
        with ExitStack() as bars:
            result = detection(
                encoder,
                *images,
                **self.settings.model_dump(exclude={"train", "test"}),
                device=choose_device(work.options.device),
                state=work.folder / _STATE,
                progress=lambda what: _progress(what, work.display, bars),
                warn=work.display.warn,
            )
        is_whole = (train, tested) == (_TRAIN, _TEST) and tuple(len(part) for part in images) == VOC0712_SIZES
        origin = encoder.origin
        return replace(
            result,
            data={
                "name": "voc0712" if is_whole else " ".join(train),
                "train": " ".join(train),
                "test": " ".join(tested),
                "fingerprints": [fingerprint(part) for part in images],
            },
            model={
                "name": origin.get("run") or origin["file"].partition(".")[0],
                "hash": origin["weights"],
                "branch": origin.get("branch", ""),
                **{key: origin[key] for key in ("epochs", "epoch") if origin.get(key)},
            },
        )

    def work(self, sizes: Sizes) -> Work:
        """A step of training is three passes; in every pass, the last stage also runs on each of the proposals."""
        chosen = self.settings
        side = sum(chosen.sizes) / len(chosen.sizes)
        stage = _LAST_STAGE * _STAGE_PIXELS
        train = _ASPECT * side**2 + _BOXES_IN_TRAINING * stage
        test = _ASPECT * chosen.test_size**2 + _BOXES_IN_TEST * stage
        return Work(chosen.trials * (3 * chosen.iterations * chosen.batch_size * train + sizes.test * test))


def _progress(what: str, display: "Display", bars: ExitStack) -> "Callable[[int, int], None]":
    """Return a progress bar that starts with its first count and ends the one before it."""
    counters: list[Callable[[int, int], None]] = []

    def count(done: int, total: int) -> None:
        if not counters:
            bars.close()
            counters.append(bars.enter_context(display.counting(what, total)))
        counters[0](done, total)

    return count
