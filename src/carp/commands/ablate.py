"""`carp ablate`: the paper's ablations on your own images."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from carp.commands.evaluate import evaluate
from carp.commands.train import train
from carp.compute import distributed
from carp.config import check_keys, decisive, resolve
from carp.config.recipe import read_settings
from carp.console.progress import Display
from carp.errors import CarpError, ConfigError, received
from carp.files.outputs import check_output_folder
from carp.images.loading.order import check_batch_size
from carp.images.source import Openable
from carp.report.study_files import write_study
from carp.runs.run_folder import open_run, versions
from carp.studies.ablations import Ablation, Texts, find_ablation, split
from carp.studies.job_folder import newest_step, remove_large, tidy
from carp.studies.job_result import JobResult, read_all
from carp.studies.jobs import JobQueue, estimate
from carp.studies.measure import EARLY_ENDS, job_seconds, measure_run
from carp.studies.points import Job, Point, all_jobs
from carp.studies.published import published_ablations
from carp.studies.study import Study, rows_of
from carp.studies.study_folder import in_turn, open_study
from carp.studies.study_images import StudyImages
from carp.training.micro_batch import check_division
from carp.training.planning.memory_check import check_memory
from carp.training.preparation import open_for_training

_K = 20  # neighbours, as in the paper's ablations


def ablate(
    name: str,
    data: Openable,
    out: str | Path,
    recipe: str | Path | None = None,
    *,
    test: Openable | None = None,
    values: Texts = None,
    variants: Texts = None,
    seeds: str | int | Sequence[int] = "0,1,2",
    keep_weights: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
    **overrides: Any,
) -> Study:
    """Train once per value and seed, measure the k-NN accuracy of every run, and compare the order with the paper's.

    Finished jobs are kept in `out` and never repeated; an interrupted one resumes. Several processes may be started on
    the same folder: they share the jobs. Under torchrun, all processes share every job (docs/ablations.md).

    Args:
        name: `batch-size`, `prototypes`, `block-size`, `momentum`, `partition`, `epochs`, `views` or `entropy`.
        data: Labelled images to train on, which are also the bank for k-NN. Training does not use the labels.
        out: Folder of the studies; this one is in its sub-folder `name`.
        recipe: Name of a recipe, or a YAML file; None is `adapt` with a start, and `folder` without.
        test: Labelled images to classify; None is leave-one-out on the training images.
        values: The values to compare, as comma-separated text or as a sequence; None is the paper's grid.
        variants: The variants to train, such as `with-teacher`, as comma-separated text or as a sequence; None is all.
        seeds: The seeds, as comma-separated text or as numbers; every value is trained once with each.
        keep_weights: Keep checkpoints and features of finished jobs, which take up a lot of space.
        dry_run: Train nothing and write nothing: the result lists the jobs that are done and those that are `missing`.
        quiet: Print nothing.
        **overrides: Settings that all jobs share, as in `key=value` on the command line.

    Returns:
        The rows of the table, with the published values; `table.md`, `table.csv` and `plot.png` are in its folder.
    """
    ablation, numbers = find_ablation(name), _seeds(seeds)
    folder, display = Path(out) / ablation.name, Display(quiet=quiet or not distributed.is_first())
    check_output_folder(folder)
    _refuse_reserved(ablation, overrides)
    given = read_settings(recipe, overrides)
    config, source, device = open_for_training(data, recipe, overrides, display)
    images = StudyImages.open(data, source, test, config, display, k=_K)
    common = {**overrides, **ablation.adapt(given, config.global_size), "precision": config.precision}
    points = ablation.points(values, variants, epochs=config.epochs)
    points, notes = _possible(ablation.axis, points, {**given, **common}, images, device)
    for note in notes:
        display.say(note)
    if not points:
        raise ConfigError(f"no value of {ablation.name} can be used here: {notes[0]}")
    jobs = all_jobs(points, numbers)
    if distributed.is_first():
        open_study(folder, _identity(ablation, {**given, **common}, images), write=not dry_run)
    if dry_run:
        return _study(ablation, folder, jobs, notes)
    if distributed.is_first():
        tidy(folder)
    images = images.held(config, display)

    def work(job: Job, place: Path) -> None:
        distributed.stop()  # training starts a group of its own
        start, resumed_at, ended_by = time.monotonic(), newest_step(place), None
        settings = {**common, **job.point.settings, "seed": job.seed}
        try:
            train(images.train, place, recipe, quiet=quiet, **{"report": False, **settings})
        except EARLY_ENDS as early:
            ended_by = early
            display.warn(f"{job.title}: {early}")
        trained = time.monotonic()
        measured = measure_run(place, ended_by, lambda: _accuracies(place, images, quiet=quiet))
        seconds = job_seconds(trained - start, resumed_at, measured.steps, time.monotonic() - trained)
        measured = measured.model_copy(update={"seconds": seconds, "resumed_at": resumed_at})
        if distributed.is_first():
            made = JobResult.of(ablation.name, job, measured, kept=keep_weights, versions=versions())
            made.write(place)
            remove_large(place, made)

    def report() -> None:
        with in_turn(folder):  # a slower process must not replace the table by an older one
            write_study(_study(ablation, folder, jobs, notes), warn=display.warn_once)

    if not JobQueue(folder, jobs, work, display.say, report, label=ablation.axis).run() and distributed.is_first():
        report()  # the files may be missing, or drawn by an earlier version
    distributed.stop()
    return _study(ablation, folder, jobs, notes)


def _study(ablation: Ablation, folder: Path, jobs: Sequence[Job], notes: Sequence[str]) -> Study:
    results = read_all(folder)
    names = {result.job.name for result in results}
    left = [job for job in jobs if job.name not in names]
    return Study(
        name=ablation.name,
        title=ablation.title,
        axis=ablation.axis,
        scale=ablation.scale,
        folder=folder,
        rows=rows_of(results, list(ablation.variants)),
        published=published_ablations().get(ablation.name),
        missing=tuple(job.name for job in left),
        notes=tuple(notes),
        seconds_left=estimate(left, results, jobs),
    )


def _accuracies(folder: Path, images: StudyImages, *, quiet: bool) -> dict[str, float]:
    """Return the k-NN accuracy of the branches, as `carp eval knn` measures it."""
    config = open_run(folder).config
    found = {}
    for branch in ["student"] if config.siamese else ["student", "teacher"]:
        result = evaluate(
            "knn", folder, images.train, test=images.test, branch=branch, k=_K, device=config.device, quiet=quiet
        )
        found[branch] = result.values[f"top1@{_K}"]
    return found


def _possible(
    axis: str, points: Sequence[Point], values: Mapping[str, Any], images: StudyImages, device: torch.device
) -> tuple[list[Point], list[str]]:
    """Return the points that can be trained, and one line for each that cannot. The first process decides for all."""
    seen: dict[str, Point] = {}
    reasons = list[str]()
    for point in points:
        try:
            config = resolve({**values, **point.settings}, num_images=len(images.train))
            check_batch_size(len(images.train), config.batch_size)
            check_division(config)
            check_memory(config, device)
            twin = seen.setdefault(config.model_dump_json(), point)
            reasons.append("" if twin is point else f"its settings are those of {twin.title}.")
        except CarpError as error:
            reasons.append(str(error))
    reasons = distributed.gather(reasons)[0]
    skipped: dict[tuple[str, str], None] = {
        (point.value, reason): None for point, reason in zip(points, reasons, strict=True) if reason
    }
    left = [point for point, reason in zip(points, reasons, strict=True) if not reason]
    return left, [f"skipped {axis} {value}: {reason}" for value, reason in skipped]


def _identity(ablation: Ablation, values: Mapping[str, Any], images: StudyImages) -> dict[str, Any]:
    """Return what all jobs share, without settings that do not affect the result, as when a run is resumed."""
    config = resolve(values, num_images=len(images.train))
    own = ablation.reserved | {"seed"}
    settings = {key: value for key, value in decisive(config).items() if key not in own}
    return {"ablation": ablation.name, "settings": settings, "k": _K, **images.described()}


def _seeds(given: str | int | Sequence[int]) -> list[int]:
    texts = split(given)
    if not texts or not all(text.isascii() and text.isdecimal() for text in texts):
        raise ConfigError(f"the seeds must be whole numbers of at least 0, such as 0,1,2, received {received(given)}.")
    numbers = list(dict.fromkeys(int(text) for text in texts))
    check_keys({"seed": max(numbers)})
    return numbers


def _refuse_reserved(ablation: Ablation, overrides: Mapping[str, Any]) -> None:
    for key in overrides:
        if key == "seed":
            raise ConfigError(
                f"every seed is a job of its own, received seed={overrides[key]}: write --seeds {overrides[key]}."
            )
        if key in ablation.reserved:
            raise ConfigError(
                f"the ablation {ablation.name} varies {key} itself, received {key}={received(overrides[key])}: leave "
                "it out, or choose the values with --values."
            )
