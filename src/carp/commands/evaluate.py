"""`carp eval`: how good are the features?"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carp.data.decode import pixel_limit
from carp.data.source import Source, open_source
from carp.errors import ConfigError, DataError, nearest
from carp.evaluation.knn import check_neighbours, knn_accuracy, knn_leave_one_out
from carp.evaluation.result import Result
from carp.features.encoder import BranchName, load, untrained
from carp.features.extract import Features, Progress, extract, raw_pixels
from carp.run_folder import open_run
from carp.training.display import Display

PROTOCOLS = ("knn",)
BASELINES = ("raw pixels", "untrained encoder")


def evaluate(
    protocol: str,
    run: str | Path,
    data: str | Path | Source,
    *,
    test: str | Path | Source | None = None,
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
        Top-1 accuracy by name of the features.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"there is no protocol '{protocol}'.{nearest(protocol, PROTOCOLS)} Protocols: {', '.join(PROTOCOLS)}."
        )
    if temperature <= 0:
        raise ConfigError(f"temperature must be greater than 0, received {temperature}.")
    config = open_run(run).config
    bank, queries = _labelled(data), _labelled(test) if test is not None else None
    if queries is not None and queries.classes != bank.classes:
        raise DataError(f"{bank.name} and {queries.name} have different classes: {_first_difference(bank, queries)}.")
    check_neighbours(k, len(bank), leave_one_out=queries is None)  # before minutes of encoding
    display = Display(quiet=quiet)

    def features(name: str, source: Source) -> Features:
        counting = display.counting(f"{name}, {source.name}", len(source))
        with pixel_limit(config.max_image_pixels), counting as progress:
            return encode(name, source, progress)

    def encode(name: str, source: Source, progress: Progress) -> Features:
        if name == "raw pixels":
            return raw_pixels(source, size=config.global_size, progress=progress)
        encoder = (
            untrained(config, device=device)
            if name == "untrained encoder"
            else load(run, "student" if name == "student" else "teacher", device=device)
        )
        return extract(encoder.module, source, size=encoder.size, device=encoder.device, progress=progress)

    values = {}
    for name in (*(BASELINES if baselines else ()), *branches):
        stored = features(name, bank)
        if queries is None:
            values[name] = knn_leave_one_out(stored, _labels(bank), k=k, temperature=temperature)
        else:
            values[name] = knn_accuracy(
                stored, _labels(bank), features(name, queries), _labels(queries), k=k, temperature=temperature
            )
    settings = {
        "k": k,
        "temperature": temperature,
        "run": str(run),
        "bank": bank.name,
        "test": queries.name if queries else "leave one out",
    }
    return Result(protocol, values, settings)


def _labelled(data: str | Path | Source) -> Source:
    source = open_source(data)
    if source.labels is None:
        raise DataError(f"{source.name} has no labels: put its images into one sub-folder per class.")
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
