"""A comparison on one dataset: what all methods share, and how one job is done."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.compare.baselines import baseline_jobs, baseline_of, is_baseline
from benchmarks.compare.effort import Effort, is_final
from benchmarks.compare.images import ComparedImages
from benchmarks.compare.measures import HELD_OUT, KNN, MEASURES, measured
from benchmarks.compare.methods import METHODS, find_method
from benchmarks.compare.training import MethodTraining
from carp.config import check_keys, decisive, resolve
from carp.config.recipe import read_recipe
from carp.console.progress import Display
from carp.errors import ConfigError, NonFiniteError
from carp.images.loading.order import check_batch_size
from carp.runs.run_folder import versions
from carp.studies.job_folder import newest_step, remove_large, tidy
from carp.studies.job_result import JobResult, Measured
from carp.studies.jobs import JobQueue
from carp.studies.measure import DIVERGED, job_seconds
from carp.studies.points import Job
from carp.studies.study_folder import in_turn, open_study

FAILED = "failed"
TEST, DEFINITIONS = "test-images", "definitions"
_SHARED = ("encoder", "encoder_options", "stem_stride", "blur")  # of the recipe, for all methods
_RECIPE = "cifar10-cpu"


@dataclass(frozen=True)
class Comparison:
    """Everything that the jobs of one dataset share.

    Attributes:
        folder: The folder of the jobs; its name is that of the dataset.
        images: The images.
        common: The settings that all methods share.
        effort: Trials and seeds.
        tests: Whether final jobs are measured by test images; otherwise they are like trials with other seeds.
        choices: Another comparison in the same place whose trials chose the settings; None is this one.
        trials_only: Whether there are no final jobs yet, because another comparison takes over the choices.
    """

    folder: Path
    images: ComparedImages
    common: Mapping[str, Any]
    effort: Effort
    tests: bool = True
    choices: str | None = None
    trials_only: bool = False

    @property
    def trials_folder(self) -> Path:
        """The folder of the trials that choose the settings."""
        return self.folder if self.choices is None else self.folder.with_name(self.choices)

    def jobs(self, methods: Sequence[str]) -> list[Job]:
        """Return trials, baselines and final jobs; the trials of another comparison are not repeated."""
        own = self.effort.jobs([find_method(name).name for name in methods])
        trials = [job for job in own if not is_final(job)] if self.choices is None else []
        if self.trials_only:
            return trials
        return [*trials, *baseline_jobs(self.effort.seeds), *(job for job in own if is_final(job))]

    def run(self, methods: Sequence[str], display: Display) -> int:
        """Run all jobs of the methods that are left; return how many this process has run."""
        jobs = self.jobs(methods)
        check_batch_size(len(self.images.for_trials), self.common["batch_size"])
        open_study(self.folder, self.identity())
        for name in methods:  # a method that is added later does not change the study
            self._check_choice(name)
            open_study(self.folder / DEFINITIONS / name, {"method": _described(name)})
        tidy(self.folder)

        def work(job: Job, place: Path) -> None:
            if is_baseline(job):
                self.measure_baseline(job, place)
                return
            made = self.do(self.effort.with_choice(self.trials_folder, job), place)
            if made.notes:
                display.warn(f"{job.title}: {made.notes[0]}")

        def ready(job: Job) -> bool:  # test images wait for all choices
            needed = [final for final in jobs if is_final(final)] if is_baseline(job) else [job]
            return all(self.effort.is_ready(self.trials_folder, each) for each in needed)

        return JobQueue(self.folder, jobs, work, display.say, ready=ready).run()

    def _check_choice(self, name: str) -> None:
        """Raise if another comparison is to choose the settings of a method and has not done so."""
        if self.choices is None:
            return
        if not self.effort.is_ready(self.trials_folder, self.effort.jobs([name])[-1]):
            raise ConfigError(f"--choices {self.choices} has not finished the trials of {name}. Finish them first.")
        open_study(self.trials_folder / DEFINITIONS / name, {"method": _described(name)}, write=False)

    def do(self, job: Job, place: Path, *, save_steps: int | None = None) -> JobResult:
        """Train and measure one job, resume it if it was interrupted, and write its result.

        Divergence and errors of the arithmetic are results, because a setting that cannot be trained counts as a trial.
        """
        method, trial = find_method(job.point.value), job.point.settings
        source = self.images.for_finals if self._is_tested(job) else self.images.for_trials
        config = method.configure({**self.common, "seed": job.seed}, trial, num_images=len(source))
        resumed_at, steps, start, cpu = newest_step(place), 0, time.monotonic(), time.process_time()
        times: dict[str, float | None] = {}
        found: dict[str, dict[str, float]] = {}
        verdict, notes = "", tuple[str, ...]()
        try:
            training = MethodTraining(method, trial, source, config)
            steps = training.num_steps
            training.run(place, save_steps=save_steps)
            trained, cpu = time.monotonic() - start, time.process_time() - cpu
            found = self._measured(training.method.encoders(), self.images.size, job)
            evaluation = time.monotonic() - start - trained
            times = {
                "seconds": job_seconds(trained, resumed_at, steps, evaluation),
                "cpu_seconds": job_seconds(cpu, resumed_at, steps),
            }
        except NonFiniteError as error:
            verdict, notes = DIVERGED, (str(error),)
        except (RuntimeError, ValueError, ArithmeticError) as error:
            if "alloc" in str(error):  # no memory is no property of the setting
                raise
            verdict, notes = FAILED, (f"{type(error).__name__}: {error}",)
        values = Measured(
            accuracies=found.pop(KNN, {}),
            measures=found,
            verdict=verdict,
            **times,
            steps=steps,
            resumed_at=resumed_at,
            notes=notes,
        )
        return self._written(job, values, place)

    def measure_baseline(self, job: Job, place: Path) -> JobResult:
        """Measure an encoder that is not trained, also by the images that judge the trials."""
        start = time.monotonic()
        config = resolve({**self.common, "seed": job.seed}, num_images=len(self.images.train))
        encoder, size = baseline_of(job.point.value, config)
        encoders = {"student": encoder}
        found = self._measured(encoders, size, job)
        found[HELD_OUT] = measured(encoders, size, self.images.for_trials, self.images.judging, [KNN])[KNN]
        seconds = time.monotonic() - start
        return self._written(job, Measured(accuracies=found.pop(KNN), measures=found, seconds=seconds), place)

    def _written(self, job: Job, values: Measured, place: Path) -> JobResult:
        made = JobResult.of(self.folder.name, job, values, kept=False, versions=versions())
        place.mkdir(parents=True, exist_ok=True)
        made.write(place)
        remove_large(place, made)
        return made

    def _is_tested(self, job: Job) -> bool:
        return self.tests and _is_row(job)

    def _measured(self, encoders: Mapping[str, nn.Module], size: int, job: Job) -> dict[str, dict[str, float]]:
        images = self.images
        if not self._is_tested(job):
            names = MEASURES if _is_row(job) else [KNN]
            return measured(encoders, size, images.for_trials, images.judging, names)
        described = {"images": len(images.tested), "fingerprint": images.tested.fingerprint}
        with in_turn(self.folder):
            open_study(self.folder / TEST, {"test": described})  # all final jobs use the same ones
        return measured(encoders, size, images.train, images.tested, MEASURES)

    def identity(self) -> dict[str, Any]:
        """Return what must not change while jobs are added. The test images are not opened for it."""
        images, effort = self.images, self.effort
        chosen_by = {} if self.choices is None else {"choices": self.choices}
        settings = decisive(resolve(self.common, num_images=len(images.train)))
        return {
            "name": self.folder.name,
            "settings": {key: settings[key] for key in sorted(self.common)},
            "effort": {"trials": effort.trials, "seeds": list(effort.seeds), "search_seed": effort.search_seed},
            "tests": self.tests,
            **chosen_by,
            "data": {
                "images": len(images.train),
                "fingerprint": images.train.fingerprint,
                "trained_on": len(images.for_finals),
                "trials_trained_on": len(images.for_trials),
                "held_out": len(images.judging),
                "group": images.group,
            },
        }


def common_settings(size: int, epochs: int, batch_size: int, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all methods share: the encoder of the recipe `cifar10-cpu`, its views without blur."""
    recipe = read_recipe(_RECIPE)
    own = {"lr", "epochs", "batch_size", "global_size", "seed"} | {
        key for method in METHODS.values() for key in (*method.fixed, *method.search)
    }
    for key in overrides:
        if key in own:
            raise ConfigError(f"{key} is not a setting that all methods share: leave it out, received {key}=….")
    values = {
        **{key: recipe[key] for key in _SHARED},
        "precision": "fp32",  # on every processor, so that any machine can continue a comparison
        "local_size": max(8, size // 2),
        **overrides,
        "global_size": size,
        "epochs": epochs,
        "batch_size": batch_size,
    }
    check_keys(values)
    return values


def time_steps(name: str, comparison_settings: Mapping[str, Any], images: ComparedImages, steps: int) -> float:
    """Return the CPU time of the fastest training step of a method's published setting, in seconds."""
    method, source = find_method(name), images.for_trials
    trial = Effort().trial(name, 0).point.settings
    training = MethodTraining(
        method, trial, source, method.configure(comparison_settings, trial, num_images=len(source))
    )
    return min(training.time_steps(steps, time.process_time))


def _is_row(job: Job) -> bool:
    """Return whether a job is part of a row of the table; trials are not."""
    return is_final(job) or is_baseline(job)


def _described(name: str) -> dict[str, Any]:
    method = find_method(name)
    return {
        "fixed": dict(method.fixed),
        "search": {key: f"{values} (published: {values.published})" for key, values in method.search.items()},
        "schedules": [method.lr_end, method.warmup, method.momentum_end, method.vector_lr],
        "length": method.length,
        "multi_crop": method.multi_crop,
        "constants": dict(method.constants),
    }
