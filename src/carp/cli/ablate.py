"""`carp ablate`: the paper's ablations."""

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.output import say
from carp.errors import ConfigError

if TYPE_CHECKING:
    from carp.studies.study import Study


@app.command("ablate", context_settings=options.WITH_SETTINGS)
def _ablate(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            help="batch-size, prototypes, block-size, momentum, partition, epochs, views or entropy.",
            autocompletion=completion.ablations,
        ),
    ],
    data: Annotated[str, typer.Option(help="Labelled images to train on; they are also the bank for k-NN.")],
    out: Annotated[Path, typer.Option(help="Output folder; jobs that are finished in it are not repeated.")],
    settings: options.Overrides = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (`carp recipes`) or YAML file. Default: folder.", autocompletion=completion.recipes
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Labelled images to classify. Default: leave-one-out on the training images.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Values to compare, such as 128,256. Default: the paper's grid.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Variants to train, such as with-teacher or random. Default: all.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds; every value is trained once with each of them.")] = "0,1,2",
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep checkpoints and features of finished jobs.")
    ] = False,
    procs: Annotated[
        int, typer.Option(min=1, help="Number of processes that share every job: one per GPU, or a few on a CPU.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs that run at the same time.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the jobs; train nothing.")] = False,
    submit: Annotated[
        str | None, typer.Option(help="Queue the jobs on a SLURM cluster: 'nodes=1 tasks=8 hours=48 partition=gpu'.")
    ] = None,
) -> None:
    """Repeat an ablation of the paper on your own images. Rerun the same command to resume."""
    overrides = options.parse(context, settings or [])
    options.check_data(data, test)
    if submit is not None and procs > 1:
        raise ConfigError(
            f"--procs is for this machine only. With --submit, write 'tasks={procs}' (processes per node)."
        )
    given: dict[str, Any] = {"recipe": recipe, "test": test, "values": values, "variants": variants, "seeds": seeds}
    words = ["ablate", name, *(settings or []), "--data", data, "--out", str(out), *_words(given)]
    words += ["--keep-weights"] * keep_weights
    from carp.commands.ablate import ablate

    run = partial(ablate, name, data, out, **given, keep_weights=keep_weights, dry_run=dry_run, **overrides)
    if submit is not None and not dry_run:
        _queue(submit, run, out, jobs)
        return
    if jobs > 1 and not dry_run:
        run(dry_run=True)  # mistakes are reported once
        code = _side_by_side(words, copies=jobs, processes=procs)
        if code:
            raise SystemExit(code)
        run = partial(run, dry_run=True, quiet=True)  # the others have done the jobs
    elif procs > 1 and "RANK" not in os.environ and not dry_run:  # the processes themselves run the same command
        from carp.compute.launcher import launch

        raise SystemExit(launch(words, processes=procs))  # they have printed the outcome
    study = run()
    if options.is_first_process():
        _print(study, planned=dry_run)


def _print(study: "Study", *, planned: bool) -> None:
    """Print the jobs that are left, or the table."""
    from carp.report.tables.study_table import print_study

    if study.rows:
        print_study(study)
    for job in study.missing if planned else ():
        say(f"to do: {job}")
    if planned and study.missing:
        say(f"in total: {_total(study)}")
    if study.rows:
        say(f"study: {study.folder}   table: {study.folder / 'table.md'}   plot: {study.folder / 'plot.png'}")


def _total(study: "Study") -> str:
    """Return how many jobs are left, and how long they take."""
    from carp.console.quantities import counted, duration

    seconds = study.seconds_left
    time = "the time is known when the first is done" if seconds is None else f"about {duration(seconds)} one by one"
    return f"{counted(len(study.missing), 'job')} to do, {time}"


def _words(given: dict[str, Any]) -> list[str]:
    """Return the options that were given, as command-line words."""
    return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]


def _side_by_side(words: list[str], *, copies: int, processes: int) -> int:
    """Run the same command several times at once; the copies share the jobs."""
    from carp.compute.threads import available_cores
    from carp.runs.supervisor import supervise

    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // (copies * processes))))
    return supervise([*words, "--procs", str(processes)], copies=copies)


def _queue(resources: str, run: "partial[Study]", out: Path, jobs: int) -> None:
    """Submit as many cluster jobs as may run at the same time; they share the work."""
    from carp.runs.cluster import Job, parse_resources, submit

    requested = parse_resources(resources)
    study = run(dry_run=True)  # mistakes are reported before anything is queued
    for _ in range(min(jobs, len(study.missing))):
        say(f"job: {submit(Job(run), out, requested)}   output: {out}.jobs")
