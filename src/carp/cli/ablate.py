"""`carp ablate`: the paper's ablations."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.output import say
from carp.errors import ConfigError


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
    data: Annotated[str, typer.Option(help="Labelled images: to train on, and the bank of k-NN.")],
    out: Annotated[Path, typer.Option(help="Folder of the studies; finished jobs in it are not repeated.")],
    settings: options.Overrides = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (`carp recipes`) or YAML file. Default: folder.", autocompletion=completion.recipes
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Labelled images to classify. Default: leave out every training image in turn.")
    ] = None,
    values: Annotated[
        str | None, typer.Option(help="Values to compare, such as 128,256. Default: the paper's grid.")
    ] = None,
    variants: Annotated[
        str | None, typer.Option(help="Some of the variants, such as with-teacher or random. Default: all.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Every value is trained once with each of these seeds.")] = "0,1,2",
    keep_weights: Annotated[
        bool, typer.Option("--keep-weights", help="Keep checkpoints and features of finished jobs.")
    ] = False,
    procs: Annotated[
        int, typer.Option(min=1, help="Number of processes that share every job: one per GPU, or a few on a CPU.")
    ] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of jobs that run at the same time.")] = 1,
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
    if submit is None and "RANK" not in os.environ and (jobs > 1 or procs > 1):
        _start(words, out / name, jobs=jobs, processes=procs)
        return
    from carp.commands.ablate import ablate

    run = partial(ablate, name, data, out, **given, keep_weights=keep_weights, **overrides)
    if submit is not None:
        _queue(submit, run, out, jobs)
        return
    study = run()
    if options.is_first_process():
        from carp.report.tables.study_table import print_study

        print_study(study)
        say(f"study: {study.folder}   table: {study.folder / 'table.md'}   plot: {study.folder / 'plot.png'}")
