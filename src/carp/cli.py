"""The command line. Torch is imported by the commands that need it, so that `--help` answers at once."""

import json
import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from carp._version import __version__
from carp.errors import CarpError, ConfigError, Interrupted, nearest

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn image encoders without labels, and use them.",
)

data_app = typer.Typer(no_args_is_help=True, help="Look at images before training on them; make copies of them.")
app.add_typer(data_app, name="data")

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, e.g. epochs=50 lr=0.3.")
]

_INTERRUPTED = 130
_WITH_SETTINGS = {
    "ignore_unknown_options": True
}  # they arrive among the settings, and `_parse` tells how to write them


def _parse(context: typer.Context, words: list[str]) -> dict[str, Any]:
    """Read key=value words; an option that does not exist is told the nearest one, or its spelling as a setting."""
    from carp.config import Config, parse_overrides

    for place, word in enumerate(words):
        if not word.startswith("-"):
            continue
        option, _, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        if key in Config.model_fields:
            after = "true" if Config.model_fields[key].annotation is bool else "".join(words[place + 1 : place + 2])
            setting = f"{key}={value or after or 'VALUE'}"
            raise ConfigError(f"there is no option '{option}': settings are written key=value, here {setting}.")
        options = _options(context)
        raise ConfigError(
            f"there is no option '{option}'.{_nearest(key, options, Config.model_fields)} "
            f"Options: {', '.join(options)}; `carp settings` lists the settings."
        )
    overrides = parse_overrides(words)
    for key, value in overrides.items():
        option = "--" + key.replace("_", "-")
        if option in _options(context):
            flag = any(option in p.opts and getattr(p, "is_flag", False) for p in context.command.params)
            raise ConfigError(f"'{key}' is an option: write {option}{'' if flag else f' {value}'}.")
        if key not in Config.model_fields:
            raise ConfigError(f"there is no setting '{key}'.{nearest(key, Config.model_fields)}")
    return overrides


def _nearest(key: str, options: list[str], settings: Iterable[str]) -> str:
    """' Did you mean …?' with the closest of options and settings, as it is written."""
    names = {name: name for name in settings} | {name.lstrip("-").replace("-", "_"): name for name in options}
    close = get_close_matches(key, names, n=1)
    return f" Did you mean '{names[close[0]]}'?" if close else ""


def _options(context: typer.Context) -> list[str]:
    return [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"carp {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that come before a command."""


@app.command("train", context_settings=_WITH_SETTINGS)
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
    out: Annotated[Path | None, typer.Option(help="Run folder; the same folder continues the run.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe name (`carp recipes`) or YAML file. Default: folder.")
    ] = None,
    val: Annotated[
        str | None, typer.Option(help="Labelled images: k-NN of student and teacher while training.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show settings, steps, memory and time; write nothing.")
    ] = False,
    procs: Annotated[int, typer.Option(min=1, help="Processes that share the work: one a GPU, or a few on a CPU.")] = 1,
    submit: Annotated[
        str | None,
        typer.Option(help="Queue the run on a SLURM cluster: 'nodes=2 tasks=8 hours=48 partition=gpu'."),
    ] = None,
) -> None:
    """Train an encoder on images without labels. The same command again continues the run."""
    overrides = _parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    if val is not None:
        overrides["validation"] = val
    if not dry_run and out is None:
        raise ConfigError("--out is missing: give the folder for the run, e.g. --out runs/first.")
    if dry_run or out is None:
        from carp.commands.dry_run import dry_run as plan

        for line in plan(data, recipe, **overrides):
            typer.echo(line)
        return
    if submit is not None:
        from carp.commands.submit import Job, parse_resources
        from carp.commands.submit import submit as queue

        number = queue(Job(data, out, recipe, overrides), parse_resources(submit))
        typer.echo(f"job: {number}   what it says: {out}.jobs")
        return
    if procs > 1 and "RANK" not in os.environ:  # the processes themselves are called with the same words
        from carp.commands.launch import launch

        options = [word for name, value in (("--recipe", recipe), ("--val", val)) if value for word in (name, value)]
        words = ["train", data, *(settings or []), "--out", str(out), *options]
        raise typer.Exit(launch(words, processes=procs))
    from carp.commands.train import train

    run = train(data, out, recipe, **overrides)
    if not is_first_process():
        return
    typer.echo(f"run: {run.folder}   plot: {run.folder / 'plots.png'}")
    typer.echo(f"next: carp eval knn {run.folder} --data LABELLED_FOLDER   or in Python: carp.load('{run.folder}')")


Branches = Annotated[
    list[str] | None,
    typer.Option("--branch", help="Encoder of a run: teacher, student, untrained, raw pixels; may be repeated."),
]
Layer = Annotated[str, typer.Option(help="Which output: encoder (pooled), projector, or a layer such as layer3.")]
Size = Annotated[int | None, typer.Option(min=1, help="Side of the images in pixels. Default: that of training.")]
Resize = Annotated[
    int | None, typer.Option(min=1, help="Shorter side before the centre is cut. Default: 8/7 of the size.")
]
Precision = Annotated[str, typer.Option(help="Of the encoder: fp32 or bf16.")]
Root = Annotated[Path | None, typer.Option(help="Folder of torchvision's data sets.")]
Download = Annotated[bool, typer.Option("--download", help="Let torchvision fetch what is missing.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]


@app.command("embed")
def _embed(
    model: Annotated[str, typer.Argument(help="Run folder, or weights: FILE or METHOD:FILE (`carp weights`).")],
    data: Annotated[str, typer.Option(help="Images of any kind (docs/data.md), labelled or not.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; the same command again continues there.")],
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    layer: Layer = "encoder",
    size: Size = None,
    resize: Resize = None,
    precision: Precision = "fp32",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    form: Annotated[
        str, typer.Option("--format", help="npy; parquet and csv write one file more into the folder.")
    ] = "npy",
    root: Root = None,
    download: Download = False,
    device: Device = "auto",
) -> None:
    """Turn images into features and keep them: vectors, labels, paths, and what made them."""
    from carp.commands.embed import embed

    store = embed(
        model,
        data,
        out,
        branch=branch,
        layer=layer,
        size=size,
        resize=resize,
        precision=precision,  # type: ignore[arg-type]  # checked there
        batch_size=batch_size,
        form=form,  # type: ignore[arg-type]
        root=root,
        download=download,
        device=device,
        quiet=False,
    )
    if is_first_process():
        typer.echo(f"features: {out}   {len(store.features):,} images × {store.features.shape[1]}")


@app.command("index")
def _index(
    features: Annotated[Path, typer.Argument(help="Folder of `carp embed`.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the index. Default: index in that of the features.")
    ] = None,
    kind: Annotated[str, typer.Option(help="exact, ivf or hnsw; auto chooses by the number of images.")] = "auto",
) -> None:
    """Make an index of stored features, for `carp search`; what an approximate one finds is measured."""
    from carp.commands.search import index

    made, folder = index(features, out, kind=kind, quiet=False)
    settings = "".join(f", {name} {value}" for name, value in made.settings.items())
    recall = "" if made.kind == "exact" else f"; finds {made.recall:.1%} of the ten nearest neighbours"
    typer.echo(f"index: {folder}   {len(made):,} images, {made.kind}{settings}{recall}")


@app.command("search")
def _search(
    index: Annotated[Path, typer.Argument(help="Folder of `carp index`.")],
    images: Annotated[list[Path], typer.Argument(help="Query images, or folders of them.")],
    k: Annotated[int | None, typer.Option(min=1, help="How many images for each query. Default: 10.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The run or weights of the features, if not where they were when embedding.")
    ] = None,
    sheet: Annotated[Path | None, typer.Option(help="Contact sheet to write: a .png or a .html file.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The images of the index, if not where they were; for the sheet.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    device: Device = "auto",
) -> None:
    """Find the images that are most similar to query images."""
    from carp.commands.search import search
    from carp.report.found import found_as_dict, print_found

    found = search(index, images, k=k, model=model, sheet=sheet, data=data, device=device)
    if as_json:
        typer.echo(json.dumps(found_as_dict(found)))
        return
    print_found(found)
    if sheet is not None:
        typer.echo(f"sheet: {sheet}")


@app.command("duplicates")
def _duplicates(
    data: Annotated[str, typer.Argument(help="Images of any kind (docs/data.md): a folder, a list, shards, ….")],
    model: Annotated[
        str | None, typer.Option(help="Run folder, or weights: FILE or METHOD:FILE; none with stored --features.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for duplicates.html, duplicates.json and the features.")] = Path(
        "duplicates"
    ),
    threshold: Annotated[
        str, typer.Option(help="Least similarity of copies, 0 to 1; auto chooses it from the images.")
    ] = "auto",
    features: Annotated[
        Path | None, typer.Option(help="Folder of `carp embed` for the same images. Default: features in --out.")
    ] = None,
    size: Size = None,
    resize: Resize = None,
    precision: Precision = "fp32",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 256,
    device: Device = "auto",
) -> None:
    """Group the near-copies among images, for a person to look at. Nothing is deleted."""
    from carp.commands.duplicates import duplicates
    from carp.report.copies_page import print_copies

    found = duplicates(
        data,
        model,
        out=out,
        threshold=threshold,
        features=features,
        size=size,
        resize=resize,
        precision=precision,  # type: ignore[arg-type]  # checked there
        batch_size=batch_size,
        device=device,
        quiet=False,
    )
    print_copies(found)
    typer.echo(f"page: {out / 'duplicates.html'}   list: {out / 'duplicates.json'}   (nothing was deleted)")


@app.command("export")
def _export(
    model: Annotated[str, typer.Argument(help="Run folder, or weights: FILE or METHOD:FILE (`carp weights`).")],
    form: Annotated[str, typer.Option("--format", help="torchvision, timm, safetensors, onnx or detectron2.")],
    out: Annotated[Path, typer.Option(help="File to write; for timm a folder.")],
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
) -> None:
    """Write an encoder for another library, read it back there, and compare its features."""
    from carp.commands.export import export

    for line in export(model, out, form=form, branch=branch).lines():
        typer.echo(line)


@app.command("eval", context_settings=_WITH_SETTINGS)
def _eval(
    context: typer.Context,
    protocol: Annotated[
        str, typer.Argument(help="knn, kmeans, linear, few-shot, retrieval, copies, detection or all.")
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            help="Run folder, or weights: FILE or METHOD:FILE (`carp weights`); none if --data and --test are folders "
            "of `carp embed`."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the protocol, e.g. k=20.")
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            "--database",
            help="Labelled images for training (docs/data.md; dataset:NAME), or the folder of their features; the "
            "images that retrieval searches.",
        ),
    ] = "",
    queries: Annotated[str | None, typer.Option(help="retrieval: images that ask.")] = None,
    truth: Annotated[Path | None, typer.Option(help="retrieval: published ground truth, or a relevance file.")] = None,
    test: Annotated[
        str | None,
        typer.Option(help="Labelled images to test on. Default: k-NN leaves one out, others hold out a fifth."),
    ] = None,
    branch: Branches = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also raw pixels and the untrained encoder.")] = False,
    layer: Layer = "encoder",
    size: Size = None,
    resize: Resize = None,
    precision: Precision = "fp32",
    cached: Annotated[
        bool, typer.Option("--cached", help="linear: on stored features, without random crops; seconds.")
    ] = False,
    weights: Annotated[
        str | None, typer.Option(help="FILE or METHOD:FILE, in the place of a run: another way to name the model.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results and features. Default: the run; of weights, a folder of their name here."
        ),
    ] = None,
    root: Root = None,
    download: Download = False,
    device: Device = "auto",
) -> None:
    """Evaluate the student and the teacher of a run, weights of another method, or stored features."""
    words = [*([model] if model and ("=" in model or model.startswith("-")) else []), *(settings or [])]
    if words and words[0] == model:
        model = None
    model = weights or model
    overrides = _protocol_settings(context, protocol, words)
    overrides |= {key: value for key, value in (("queries", queries), ("truth", truth)) if value is not None}
    if not data:
        raise ConfigError("--data is missing: give labelled images, e.g. --data LABELLED_FOLDER.")
    if protocol == "detection":
        from carp.commands.detection import detection_branches
        from carp.report.tables import print_results

        print_results(
            detection_branches(model, data, branches=branch or ["teacher"], out=out, device=device, **overrides)
        )
        return
    if model is None and out is None:
        out = Path()
    from carp.commands.evaluate import evaluate_branches
    from carp.commands.labelled import home_of
    from carp.features.encoder import is_weights
    from carp.report.tables import print_results

    if baselines and model is not None and is_weights(model):
        raise ConfigError("--baselines are those of a run: raw pixels and the encoder that it started from.")
    branches = [*(branch or ["student", "teacher"]), *(["raw pixels", "untrained"] if baselines else [])]
    results, notes = evaluate_branches(
        protocol,
        model,
        data,
        branches=branches,
        test=test,
        layer=layer,
        size=size,
        resize=resize,
        precision=precision,
        cached=cached,
        out=out,
        root=root,
        download=download,
        device=device,
        quiet=False,
        **overrides,
    )
    if is_first_process():
        print_results(results)
        for note in notes:
            typer.echo(f"note: {note}", err=True)
        typer.echo(f"results: {home_of(model, out) / 'results'}")


def _protocol_settings(context: typer.Context, protocol: str, words: list[str]) -> dict[str, Any]:
    """Read key=value words; an option that does not exist is told the nearest one, or its spelling as a setting."""
    from carp.commands.evaluate import ALL, find_protocol
    from carp.config import parse_overrides
    from carp.evaluation.protocols import settings_of

    known = [] if protocol == ALL else list(settings_of(find_protocol(protocol)))
    for place, word in enumerate(words):
        if word.startswith("-"):
            option, _, value = word.partition("=")
            key = option.lstrip("-").replace("-", "_")
            if key in known:
                setting = f"{key}={value or ''.join(words[place + 1 : place + 2]) or 'VALUE'}"
                raise ConfigError(f"there is no option '{option}': settings are written key=value, here {setting}.")
            options = _options(context)
            raise ConfigError(
                f"there is no option '{option}'.{nearest(option, options)} Options: {', '.join(options)}; settings of "
                f"{protocol}: {', '.join(known) or 'none'}."
            )
    return parse_overrides(words)


@app.command("demo", context_settings=_WITH_SETTINGS)
def _demo(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings that differ from the demo's.")
    ] = None,
) -> None:
    """Train on the embedded images for a few minutes, then show what was learned."""
    from carp.commands.demo import demo
    from carp.report.tables import print_results

    print_results(demo(out=out, **_parse(context, settings or [])))
    typer.echo(f"run: {out}   plot: {out / 'plots.png'}   results: {out / 'results'}")


@data_app.command("check", context_settings=_WITH_SETTINGS)
def _check_data(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Images of any kind (docs/data.md): a folder, a list, shards, ….")],
    settings: Overrides = None,
    recipe: Annotated[
        str | None, typer.Option(help="Recipe that the images are meant for (`carp recipes`). Default: folder.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look at so many images only, chosen at random.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read every image: counts, sizes, formats, classes, broken files, duplicates, time per epoch.

    The exit code is 0 when every image can be read, 1 when some cannot, 2 when nothing could be checked.
    """
    overrides = _parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.check_data import check_data

    found = check_data(data, recipe, limit=limit, quiet=as_json, **overrides)
    text = json.dumps(found.as_dict()) if as_json else "\n".join(found.lines())
    typer.echo(text.encode("utf-8", "backslashreplace"))  # names of files may be no text
    raise typer.Exit(0 if found.ok else 1)


@data_app.command("attack")
def _attack(
    data: Annotated[str, typer.Argument(help="Images of any kind (docs/data.md): a folder, a list, shards, ….")],
    out: Annotated[Path, typer.Option(help="Folder to write; the same command continues it.")],
    attacks: Annotated[
        list[str] | None, typer.Option(help="An attack (jpeg, crop, text, …); repeat for several. Default: all.")
    ] = None,
    every_strength: Annotated[
        bool, typer.Option("--every-strength", help="All strengths of an attack, not one chosen for each image.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="So many images only, chosen by the seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all choices.")] = 0,
    sheet: Annotated[Path | None, typer.Option(help="Also draw images and their copies into this PNG.")] = None,
) -> None:
    """Make a labelled set for copy detection: originals, and altered copies of them."""
    from carp.commands.attack import attack

    names = [name for words in attacks or [] for name in words.split(",")]
    made = attack(
        data, out=out, attacks=names, every_strength=every_strength, limit=limit, seed=seed, sheet=sheet, quiet=False
    )
    for problem in made.unreadable:
        typer.echo(f"left out: {problem}", err=True)
    typer.echo(f"originals: {made.originals:,}   copies: {made.copies:,}   manifest: {made.folder / 'manifest.json'}")
    if made.sheet is not None:
        typer.echo(f"sheet: {made.sheet}")


@app.command("views", context_settings=_WITH_SETTINGS)
def _views(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="An image, or images of any kind (docs/data.md): a folder, a list, ….")],
    settings: Overrides = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("views.png"),
    recipe: Annotated[
        str | None, typer.Option(help="Recipe name (`carp recipes`) or YAML file. Default: folder.")
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=100, help="How many images of a folder.")] = 3,
    draws: Annotated[int, typer.Option(min=1, max=100, help="How often the views of each are drawn.")] = 2,
) -> None:
    """Draw a sheet of images and their views, as the model sees them."""
    overrides = _parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.views import views

    typer.echo(f"views: {views(data, recipe, out=out, images=images, draws=draws, **overrides)}")


@app.command("datasets")
def _datasets(
    root: Annotated[
        Path | None, typer.Option(help="Folder to look in; says what is there and how to get the rest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON.")] = False,
) -> None:
    """List the data sets of the paper's evaluation."""
    from carp.commands.datasets import describe_datasets, list_datasets

    typer.echo(list_datasets(root) if as_json else describe_datasets(root))


@app.command("table")
def _table(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Result files (RUN/results/*.json), or run folders.")
    ] = None,
    with_paper: Annotated[bool, typer.Option("--with-paper", help="Also the rows that the paper published.")] = False,
    layout: Annotated[
        str | None, typer.Option(help="Columns of a table of the paper: knn, kmeans, linear, few-shot, ….")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All values, not only the paper's.")] = False,
    form: Annotated[str | None, typer.Option("--format", help="screen, md, csv, latex or png.")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; .md, .csv, .tex or .png says the format.")] = None,
) -> None:
    """Put the results of several models into one table: best bold, second underlined."""
    from carp.commands.table import make_table, write_table

    table, notes = make_table(results=results or [], paper_layout=layout, with_paper=with_paper, everything=everything)
    write_table(table, form=form, out=out)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    if out is not None:
        typer.echo(f"table: {out}")


@app.command("weights")
def _weights(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[[NAME:]FILE]", help="A checkpoint to recognise. Default: list all."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON.")] = False,
) -> None:
    """List the released weights of other methods that CARP reads, or say what a file of weights is.

    Nothing in a file is ever run.
    """
    from carp.commands.weights import describe_file, describe_formats, list_formats, recognise_file

    if file is None:
        typer.echo(list_formats() if as_json else describe_formats())
    else:
        typer.echo(recognise_file(file) if as_json else describe_file(file))


@app.command("recipes")
def _recipes(
    name: Annotated[str | None, typer.Argument(help="Show this recipe's file. Default: list all.")] = None,
) -> None:
    """List the recipes that ship with CARP, or show one."""
    from carp.config import list_recipes, read_recipe, recipe_path

    if name is not None:
        read_recipe(name)  # so that a mistake is told as everywhere
        typer.echo(recipe_path(name).read_text().rstrip())
        return
    for recipe, first_line in list_recipes().items():
        typer.echo(f"{recipe:<24} {first_line}")


@app.command("settings")
def _settings(
    key: Annotated[str | None, typer.Argument(help="Show this setting only. Default: show all.")] = None,
) -> None:
    """Show the settings: default, what is accepted, meaning."""
    from carp.commands.settings import describe_settings

    typer.echo(describe_settings(key))


def is_first_process() -> bool:
    """Under torchrun only one of the processes speaks."""
    return os.environ.get("RANK", "0") == "0"


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and a non-zero exit."""
    try:
        code = app(prog_name="carp", standalone_mode=False)
        if code == _INTERRUPTED:  # some versions of Typer make it of Ctrl-C, and say nothing
            _end("interrupted", _INTERRUPTED)
        sys.exit(code)
    except CarpError as error:
        kind = "" if isinstance(error, Interrupted) else "error: "
        _end(f"{kind}{error}", error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted", _INTERRUPTED)
    except Exception as error:
        # Some versions of Typer bring their own copy of click, so its exceptions are known by what they have
        name = type(error).__name__
        if name == "Abort":
            _end("interrupted", _INTERRUPTED)
        if not hasattr(error, "format_message"):
            if not _first_to_tell(1)[0]:
                sys.exit(1)
            raise
        if name == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
            sys.exit(2)
        _end(f"error: {_usage(error)}", 2)


def _usage(error: Any) -> str:
    """What is wrong with the words of a command, in a line."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "carp"
    stop = "" if message.endswith((".", "?")) else "."
    return f"{message[0].lower()}{message[1:]}{stop} `{path} --help` shows what it takes."


def _end(words: str, code: int) -> NoReturn:
    first, code = _first_to_tell(code)
    if first:
        sys.stderr.write(f"carp: {words}\n")
    sys.exit(code)


def _first_to_tell(code: int) -> tuple[bool, int]:
    """Of the processes of torchrun only the first that fails speaks; all end with its exit code."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return True, code
    from carp import distributed

    return distributed.first_to_tell(code)
