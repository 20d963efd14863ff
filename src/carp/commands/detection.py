"""`carp eval detection`: fine-tune a detector on an encoder, on Pascal VOC."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from carp.commands.labelled import home_of
from carp.commands.result_files import write_result
from carp.compute import distributed
from carp.compute.device import choose_device
from carp.console.progress import Display
from carp.encoders.exports import open_exportable
from carp.errors import ConfigError, DataError
from carp.evaluation.detection.trials import detection
from carp.evaluation.detection.voc import fingerprint, read_voc
from carp.evaluation.protocols import check_settings
from carp.evaluation.result import Result
from carp.images.source import Openable
from carp.images.sources.paper.paper_datasets import VOC0712_SIZES
from carp.runs.run_folder import versions

STATE = "detection"  # sub-folder: what continues an interrupted evaluation
TRAIN, TEST = ("2007:trainval", "2012:trainval"), ("2007:test",)


def evaluate_detection(
    model: str | Path | None,
    data: Openable,
    *,
    train: str | Sequence[str] = TRAIN,
    test: str | Sequence[str] = TEST,
    branch: str = "teacher",
    out: str | Path | None = None,
    device: str = "auto",
    quiet: bool = True,
    **settings: Any,
) -> Result:
    """Fine-tune Faster R-CNN on an encoder with VOC's boxes and test it (docs/protocols.md).

    The same call continues after an interruption.

    Args:
        model: A run folder, or weights: FILE or METHOD:FILE (`carp weights`).
        data: The folder that has VOCdevkit.
        train: Parts to train on, YEAR:LIST.
        test: Parts to test on, YEAR:LIST; also --test.
        branch: Which encoder of a run.
        out: Folder for the state and `results`; the run if None, or for weights a folder of their name, here.
        device: Where to train.
        quiet: Show no progress.
        **settings: Those of `carp.evaluation.detection.trials.detection`, such as `iterations=2000`.
    """
    if distributed.world_size() > 1:
        raise ConfigError("detection trains in one process: run it without torchrun.")
    settings = check_settings("detection", detection, settings)
    train, test = (tuple(parts.split(",") if isinstance(parts, str) else parts) for parts in (train, test))
    if model is None:
        raise ConfigError("detection trains on images: give a run folder, or weights with --weights FILE.")
    encoder, display = open_exportable(model, branch), Display(quiet=quiet)
    if not isinstance(data, str | Path) or not Path(data).is_dir():
        raise DataError(f"there is no folder {data}: give the one that has VOCdevkit.")
    images = [read_voc(Path(data).expanduser(), parts) for parts in (train, test)]
    folder = home_of(model, out)
    with ExitStack() as bars:
        shown = ExitStack()
        bars.callback(shown.close)

        def progress(what: str) -> Callable[[int, int], None]:
            counter: list[Callable[[int, int], None]] = []

            def count(done: int, total: int) -> None:
                if not counter:  # a bar at a time: the one before it is over
                    shown.close()
                    counter.append(shown.enter_context(display.counting(what, total)))
                counter[0](done, total)

            return count

        result = detection(
            encoder,
            *images,
            device=choose_device(device),
            state=folder / STATE,
            progress=progress,
            warn=display.warn,
            **settings,
        )
    about = {"hash": encoder.origin["weights"], "branch": encoder.origin.get("branch", "")}  # of a run, or its export
    about |= {"epochs": epochs} if (epochs := encoder.origin.get("epochs")) else {}
    is_whole = (train, test) == (TRAIN, TEST) and tuple(len(part) for part in images) == VOC0712_SIZES
    result = replace(
        result,
        data={
            "name": "voc0712" if is_whole else " ".join(train),
            "train": " ".join(train),
            "test": " ".join(test),
            "fingerprints": [fingerprint(part) for part in images],
        },
        model={"name": encoder.origin.get("run") or encoder.origin["file"].partition(".")[0], **about},
        versions=versions(),
    )
    write_result(result, folder)
    return result
