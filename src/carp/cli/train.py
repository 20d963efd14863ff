"""`carp train`, `import`, `demo`, `doctor`, `recipes` and `settings`."""

import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from carp.cli import completion
from carp.cli.app import app
from carp.cli.options import WITH_SETTINGS, Overrides, PlannedRecipe, check_data, check_model, is_first_process, parse
from carp.cli.output import say, say_text
from carp.errors import ConfigError


@app.command("train", context_settings=WITH_SETTINGS)
def _train(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="Folder of images, list of paths (.txt, .csv), tar shards, Parquet files, torchvision:NAME or "
            "embedded:shapes."
        ),
    ],
    settings: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; an existing run is resumed.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (`carp recipes`) or YAML file. Default: folder, or adapt with --from.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Weights to start from: a run folder, or FILE, METHOD:FILE, timm:NAME:FILE, hf:OWNER/NAME or a name "
            "such as lite0 (docs/weights.md). They determine the encoder.",
        ),
    ] = None,
    val: Annotated[
        str | None,
        typer.Option(help="Labelled images, to measure the k-NN accuracy of student and teacher during training."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Train as many epochs as fit into this time on this machine, but no more than the recipe has. With "
            "--from, the views may become smaller."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print settings, steps, memory and time; write nothing.")
    ] = False,
    procs: Annotated[
        int, typer.Option(min=1, help="Number of processes that share the work: one per GPU, or a few on a CPU.")
    ] = 1,
    submit: Annotated[
        str | None,
        typer.Option(help="Queue the run on a SLURM cluster: 'nodes=2 tasks=8 hours=48 partition=gpu'."),
    ] = None,
) -> None:
    """Train an encoder on images without labels. Rerun the same command to resume."""
    overrides = parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    if val is not None:
        overrides["validation"] = val
    if start is not None:
        overrides["start"] = start
    if not dry_run and out is None:
        raise ConfigError("--out is missing. Give a folder for the run, e.g. --out runs/first.")
    if dry_run or out is None:
        from carp.training.planning.dry_run import dry_run as plan

        for line in plan(data, recipe, out=out, minutes=minutes, **overrides):
            say(line)
        if procs > 1:
            say(f"note: this is the plan for one process; {procs} processes share every batch.", err=True)
        return
    if submit is not None and procs > 1:
        raise ConfigError(
            f"--procs is for this machine only. With --submit, write 'tasks={procs}' (processes per node)."
        )
    if submit is not None:
        say(f"job: {_queue(submit, data, out, recipe, overrides, minutes)}   output: {out}.jobs")
        return
    if procs > 1 and "RANK" not in os.environ:  # the processes themselves run the same command
        from carp.compute.launcher import launch

        if minutes is not None:
            raise ConfigError("--minutes measures the time of one process. Set epochs instead, or leave out --procs.")
        given = {"--recipe": recipe, "--val": val, "--from": start}
        options = [word for name, value in given.items() if value for word in (name, value)]
        words = ["train", data, *(settings or []), "--out", str(out), *options]
        raise SystemExit(launch(words, processes=procs))  # they have printed the outcome
    from carp.commands.train import train

    run = train(data, out, recipe, minutes=minutes, **overrides)
    if not is_first_process():
        return
    page = run.folder / "report" / "report.html"
    shown = f"   report: {page}" if page.exists() else ""
    say(f"run: {run.folder}   plot: {run.folder / 'plots.png'}{shown}")
    folder = str(run.folder)
    say(f"next: carp eval knn {shlex.quote(folder)} --data LABELLED_FOLDER   or in Python: carp.load({folder!r})")


def _queue(
    resources: str, data: str, out: Path, recipe: str | None, overrides: dict[str, Any], minutes: float | None
) -> str:
    """Submit the run to a cluster; mistakes in its settings and images are reported before it is queued."""
    from carp.commands.train import train
    from carp.console.progress import Display
    from carp.runs.cluster import Job, parse_resources, submit
    from carp.training.preparation import open_for_training

    requested = parse_resources(resources)
    open_for_training(data, recipe, overrides, Display(quiet=True))
    return submit(Job(partial(train, data, out, recipe, minutes=minutes, **overrides)), out, requested)


@app.command("import", context_settings=WITH_SETTINGS)
def _import(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="Checkpoint of CARP's authors, with student and teacher.")],
    data: Annotated[str, typer.Option(help="Images to train on: a folder or any other source (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="Folder for the new run.")],
    settings: Overrides = None,
) -> None:
    """Write a run folder that continues training from a checkpoint of CARP's authors."""
    overrides = parse(context, settings or [])
    check_model(file)
    from carp.commands.import_run import import_run

    run = import_run(file, data, out=out, **overrides)
    point = run.checkpoint()
    say(f"run: {run.folder}   epoch {point.state['epoch']} of {run.config.epochs}, step {point.step}")
    words = ["carp", "train", data, "--out", str(run.folder), "--recipe", str(run.folder / "config.yaml")]
    say(f"next: {shlex.join(words)}")


@app.command("demo", context_settings=WITH_SETTINGS)
def _demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. epochs=5.")
    ] = None,
) -> None:
    """Train on the embedded images for a few minutes, then evaluate the encoder."""
    from carp.commands.demo import demo
    from carp.report.tables.summary import print_results

    print_results(demo(out=out, **parse(context, settings or [])))
    say(f"run: {out}   plot: {out / 'plots.png'}   results: {out / 'results'}")


@app.command("doctor", context_settings=WITH_SETTINGS)
def _doctor(
    context: typer.Context,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the run, e.g. precision=bf16.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Images of the planned run: a folder or any other source (docs/data.md).")
    ] = None,
    recipe: PlannedRecipe = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the planned run, to examine its file system.")] = None,
    procs: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes that will share the run. Default: the number of GPUs, or 2."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Check whether this machine is ready for a run: numerics, memory, speed, processes, file system.

    Every line says pass, warn, fail or n/a (not available), and names a remedy where one is needed. The exit code is 1
    if something failed.
    """
    overrides = parse(context, settings or [])
    check_data(data)
    from carp.commands.doctor import doctor

    found = doctor(data, recipe, out=out, procs=procs, quiet=as_json, **overrides)
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)
    raise typer.Exit(0 if found.ok else 1)


@app.command("recipes")
def _recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="Recipe to print. Default: list all recipes.", autocompletion=completion.recipes),
    ] = None,
) -> None:
    """List the recipes that ship with CARP, or print one."""
    from carp.config.recipe import list_recipes, read_recipe, recipe_path

    if name is not None:
        read_recipe(name)  # reports mistakes as every other command does
        say_text(recipe_path(name).read_text().rstrip())
        return
    for recipe, first_line in list_recipes().items():
        say(f"{recipe:<24} {first_line}")


@app.command("settings")
def _settings(
    key: Annotated[
        str | None,
        typer.Argument(help="Setting to print. Default: all settings.", autocompletion=completion.keys),
    ] = None,
) -> None:
    """Print the settings: default, accepted values, meaning."""
    from carp.commands.settings import settings

    say_text(settings(key))
