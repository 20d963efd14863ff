"""The command line of the comparison: run, table, try, time."""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import benchmarks.compare
from benchmarks.compare.comparison import Comparison, common_settings, time_steps
from benchmarks.compare.effort import TRIAL_SEED, Effort
from benchmarks.compare.images import ComparedImages
from benchmarks.compare.methods import KNOWN, METHODS, find_method
from benchmarks.compare.page import write_comparison
from benchmarks.compare.summary import effort_of, read_results
from benchmarks.compare.tables import settings_text
from carp.config.recipe import parse_overrides
from carp.console.progress import Display
from carp.console.quantities import counted, duration
from carp.errors import CarpError, ConfigError, DataError, Interrupted
from carp.studies.job_result import read_all
from carp.studies.jobs import estimate
from carp.studies.study_folder import STUDY, read_study

OUT = Path("benchmarks/results/compare")


def main(words: list[str] | None = None) -> int:
    """Run a command; a mistake is one line on standard error and a non-zero code."""
    arguments = _parser().parse_args(words)
    torch.set_num_threads(1)
    try:
        arguments.command(arguments)
    except CarpError as error:
        print(f"{'' if isinstance(error, Interrupted) else 'error: '}{error}", file=sys.stderr)
        return error.exit_code
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Run the jobs of one dataset that are left."""
    display = Display()
    comparison = _comparison(arguments, display)
    jobs = comparison.jobs(arguments.methods)
    count = 0 if arguments.dry_run else comparison.run(arguments.methods, display)
    finished = read_all(comparison.folder)
    done = {result.job.name for result in finished}
    left = [job for job in jobs if job.name not in done]
    if arguments.dry_run:
        seconds = estimate(left, finished, jobs)
        how_long = "" if seconds is None else f", about {duration(seconds)}"
        print(f"{counted(len(left), 'job')} of {len(jobs)} left{how_long}")
        return
    elsewhere = f" {counted(len(left), 'job')} left to other processes." if left else ""
    display.say(f"{counted(count, 'job')} done here.{elsewhere} Tables: python -m benchmarks.compare table")


def table(arguments: argparse.Namespace) -> None:
    """Write tables, plots and the page from all results."""
    if not read_results(arguments.out):
        raise DataError(f"there are no results in {arguments.out}. Run a comparison first, or give another --out.")
    write_comparison(arguments.out, arguments.page)
    print((arguments.out / "table.md").read_text(), end="")


def try_setting(arguments: argparse.Namespace) -> None:
    """Train one setting and judge it by held-out images; nothing is kept, and no comparison counts it as a trial."""
    comparison = Comparison(Path(), _images(arguments, Display()), _common(arguments), Effort())
    words = parse_overrides(arguments.trial)
    for name in arguments.methods:
        first = comparison.effort.trial(name, 0)
        own = [*first.point.settings, *find_method(name).fixed]
        if unknown := [key for key in words if key not in own]:
            raise ConfigError(
                f"{unknown[0]} is not a setting of {name}, received {unknown[0]}=…. Its settings are {', '.join(own)}; "
                "--set changes those that all methods share."
            )
        job = replace(first, point=replace(first.point, settings={**first.point.settings, **words}))
        with tempfile.TemporaryDirectory() as place:
            made = comparison.do(replace(job, seed=arguments.seed), Path(place))
        found = ", ".join(f"{branch} {100 * value:.1f}" for branch, value in made.accuracies.items())
        print(f"{name}, {settings_text(made.settings)}: {found or made.verdict}", flush=True)


def time_methods(arguments: argparse.Namespace) -> None:
    """Measure the CPU time of a step of every method, for planning."""
    settings, images = _common(arguments), _images(arguments, Display())
    print("| method | CPU time of a step (the fastest), ms |\n| --- | --- |")
    for name in arguments.methods:
        print(f"| {KNOWN[name].title} | {1000 * time_steps(name, settings, images, arguments.steps):.0f} |", flush=True)


def _comparison(arguments: argparse.Namespace, display: Display) -> Comparison:
    try:
        seeds = tuple(dict.fromkeys(int(seed) for seed in arguments.seeds.split(",")))
    except ValueError:
        raise ConfigError(f"--seeds must be whole numbers such as 1,2,3, received {arguments.seeds!r}.") from None
    if TRIAL_SEED in seeds or min(seeds) < 0:
        raise ConfigError(f"--seeds must be above {TRIAL_SEED}, the seed of the trials, received {arguments.seeds}.")
    if arguments.trials < 1:
        raise ConfigError(f"--trials must be at least 1, received {arguments.trials}.")
    effort = Effort(arguments.trials, seeds, arguments.search_seed)
    if arguments.choices is not None:
        effort = replace(_effort_of(arguments.out / arguments.choices), seeds=seeds)
    settings = _common(arguments)
    if ":" not in arguments.test and not Path(arguments.test).exists():
        raise DataError(f"there are no test images at {arguments.test}. Check --test.")
    folder, images = arguments.out / arguments.name, _images(arguments, display)
    return Comparison(
        folder,
        images,
        settings,
        effort,
        tests=not arguments.held_out_only,
        choices=arguments.choices,
        trials_only=arguments.trials_only,
    )


def _effort_of(folder: Path) -> Effort:
    if not (folder / STUDY).exists():
        raise ConfigError(f"--choices: there is no comparison {folder.name} in {folder.parent}. Run its trials first.")
    return effort_of(read_study(folder))


def _common(arguments: argparse.Namespace) -> dict[str, object]:
    overrides = parse_overrides(arguments.settings)
    return common_settings(arguments.size, arguments.epochs, arguments.batch_size, overrides)


def _images(arguments: argparse.Namespace, display: Display) -> ComparedImages:
    return ComparedImages.open(
        arguments.train,
        arguments.test,
        arguments.size,
        limit=arguments.images,
        held_out=arguments.held_out,
        group=arguments.group,
        root=arguments.root,
        display=display,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=benchmarks.compare.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    one = _with_data(commands.add_parser("run", help="run the jobs of one dataset that are left"))
    one.add_argument("--name", required=True, help="name of the dataset, and of the folder of its jobs")
    one.add_argument("--trials", type=int, default=8, help="trials of every method; the first is the published setting")
    one.add_argument("--search-seed", type=int, default=0, help="seed of the draws")
    one.add_argument("--seeds", default="1,2,3", help="seeds of the final jobs")
    one.add_argument(
        "--held-out-only",
        action="store_true",
        help="measure the final jobs by held-out images, and leave the test images alone: to choose among ideas",
    )
    ends = one.add_mutually_exclusive_group()
    ends.add_argument(
        "--trials-only", action="store_true", help="run no final jobs: for a longer budget that has its own (--choices)"
    )
    ends.add_argument(
        "--choices",
        metavar="NAME",
        help="take the settings that the trials of this comparison chose, and run final jobs only, "
        "for a longer budget. --trials and --search-seed are then those of that comparison",
    )
    one.add_argument("--out", type=Path, default=OUT)
    one.add_argument("--dry-run", action="store_true", help="only print how many jobs are left, and how long they take")
    one.set_defaults(command=run)
    tables = commands.add_parser("table", help="write tables, plots and the page from all results")
    tables.add_argument("--out", type=Path, default=OUT)
    tables.add_argument("--page", type=Path, help="also write this page, such as docs/comparison.md")
    tables.set_defaults(command=table)
    trying = _with_data(commands.add_parser("try", help="train one setting and judge it by held-out images"))
    trying.add_argument(
        "--trial",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="other values than the published ones, searched or not: lr=4",
    )
    trying.add_argument("--seed", type=int, default=TRIAL_SEED)
    trying.set_defaults(command=try_setting)
    timing = _with_data(commands.add_parser("time", help="measure the CPU time of a step of every method"))
    timing.add_argument("--steps", type=int, default=10)
    timing.set_defaults(command=time_methods)
    return parser


def _with_data(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options about images and settings."""
    parser.add_argument("--train", required=True, help="labelled training images; training does not use the labels")
    parser.add_argument("--test", required=True, help="labelled test images, opened after the choice")
    parser.add_argument("--root", help="folder of datasets, for dataset:NAME")
    parser.add_argument("--size", type=int, default=32, help="side of an image in pixels")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--images", type=int, help="train on this many images, chosen at random; default: all")
    parser.add_argument("--held-out", type=int, help="images that judge the trials; default: a fifth, at most 5,000")
    parser.add_argument(
        "--group", help="regular expression: images that agree in what it matches are held out together"
    )
    parser.add_argument("--methods", nargs="+", choices=list(KNOWN), default=list(METHODS))
    parser.add_argument(
        "--set", dest="settings", nargs="+", default=[], metavar="KEY=VALUE", help="settings for all methods: flip=0"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
