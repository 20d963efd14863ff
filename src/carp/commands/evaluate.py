"""`carp eval`: how good are the features?"""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.commands.inputs import open_more
from carp.config import Config
from carp.data.decode import pixel_limit
from carp.data.source import Openable, Source, unlabelled
from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.knn import check_neighbours, knn_accuracy, knn_leave_one_out
from carp.evaluation.result import Result
from carp.features.encoder import BranchName, load, untrained
from carp.features.extract import Extracted, Features, Progress, extract, raw_pixels
from carp.run_folder import open_run
from carp.training.display import Display

PROTOCOLS = ("knn",)
BASELINES = ("raw pixels", "untrained encoder")

Encode = Callable[[Source, Progress], Extracted]
Labelled = tuple[Features, NDArray[np.int64]]


def evaluate(
    protocol: str,
    run: str | Path,
    data: Openable,
    *,
    test: Openable | None = None,
    branches: tuple[BranchName, ...] = ("student", "teacher"),
    baselines: bool = False,
    k: int = 20,
    temperature: float = 0.07,
    device: str = "auto",
    quiet: bool = True,
) -> Result:
    """Evaluate the encoders of a run.

    Args:
        protocol: `knn`.
        run: The run folder.
        data: Labelled images that serve as the bank.
        test: Labelled images to classify; without it every image of `data` is left out in turn.
        branches: Which encoders.
        baselines: Also raw pixels and the untrained encoder.
        k: Number of neighbours.
        temperature: τ of the vote.
        device: Where to run.
        quiet: Show no progress.

    Returns:
        Top-1 accuracy by name of the features. Images that cannot be read are left out, with a warning.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"there is no protocol '{protocol}'.{nearest(protocol, PROTOCOLS)} Protocols: {', '.join(PROTOCOLS)}."
        )
    if temperature <= 0:
        raise ConfigError(f"temperature must be greater than 0, received {temperature}.")
    config = open_run(run).config
    display = Display(quiet=quiet)
    bank = _labelled(data, config, Path(run), display)
    queries = _labelled(test, config, Path(run), display) if test is not None else None
    if queries is not None and queries.classes != bank.classes:
        raise DataError(f"{bank.name} and {queries.name} have different classes: {_first_difference(bank, queries)}.")
    check_neighbours(k, len(bank), leave_one_out=queries is None)  # before minutes of encoding

    left_out: dict[str, int] = {}

    def labelled(source: Source, encode: Encode, name: str) -> Labelled:
        counting = display.counting(f"{name}, {source.name}", len(source))
        with pixel_limit(config.max_image_pixels), counting as progress:
            found = encode(source, progress)
        if (note := found.note()) and source.name not in left_out:
            left_out[source.name] = len(found.unreadable)
            if quiet:
                warnings.warn(note, stacklevel=3)
            else:
                display.warn(note)
        return found.features, _labels(source)[found.indices]

    values = {}
    for name in (*(BASELINES if baselines else ()), *branches):
        encode = _encode(name, run, config, device)
        stored = labelled(bank, encode, name)
        if queries is None:
            values[name] = knn_leave_one_out(*stored, k=k, temperature=temperature)
        else:
            values[name] = knn_accuracy(*stored, *labelled(queries, encode, name), k=k, temperature=temperature)
    settings = {
        "k": k,
        "temperature": temperature,
        "run": str(run),
        "bank": bank.name,
        "test": queries.name if queries else "leave one out",
        "left_out": left_out,
    }
    return Result(protocol, values, settings)


def _encode(name: str, run: str | Path, config: Config, device: str) -> Encode:
    """What turns images into the features of this name; an encoder is built once for all sources."""
    if name == "raw pixels":
        return lambda source, progress: raw_pixels(source, size=config.global_size, progress=progress)
    if name == "untrained encoder":
        encoder = untrained(config, device=device)
    else:
        encoder = load(run, "student" if name == "student" else "teacher", device=device)
    return lambda source, progress: extract(
        encoder.module, source, size=encoder.size, device=encoder.device, progress=progress
    )


def _labelled(data: Openable, config: Config, run: Path, display: Display) -> Source:
    source = open_more(data, config, run, display)
    if source.labels is None:
        raise unlabelled(source)
    return source


def _labels(source: Source) -> NDArray[np.int64]:
    assert source.labels is not None
    return source.labels


def _first_difference(bank: Source, queries: Source) -> str:
    only_bank = sorted(set(bank.classes) - set(queries.classes))
    only_queries = sorted(set(queries.classes) - set(bank.classes))
    return "; ".join(
        f"'{names[0]}' is only in {where.name}"
        for names, where in ((only_bank, bank), (only_queries, queries))
        if names
    )
