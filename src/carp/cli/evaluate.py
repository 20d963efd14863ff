"""How good is it: `carp eval`, `table`, `datasets`, `weights`."""

from pathlib import Path
from typing import Annotated

import typer

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.model_options import with_model_options
from carp.cli.output import say, say_text
from carp.cli.protocol_help import EvalCommand
from carp.errors import ConfigError
from carp.features.feature_options import FeatureOptions


@app.command("eval", cls=EvalCommand, context_settings=options.WITH_SETTINGS)
@with_model_options
def _eval(
    context: typer.Context,
    features: FeatureOptions,
    protocol: Annotated[
        str,
        typer.Argument(
            help="knn, kmeans, linear, few-shot, retrieval, copies, detection or all.",
            autocompletion=completion.protocols,
        ),
    ],
    model: Annotated[
        str | None,
        typer.Argument(
            help="Run folder, or weights: FILE or METHOD:FILE (`carp weights`); none if --data and --test are folders "
            "of `carp embed`."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Settings of the protocol, e.g. k=20.",
            autocompletion=completion.protocol_settings,
        ),
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
    branch: options.Branches = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also raw pixels and the untrained encoder.")] = False,
    cached: Annotated[
        bool, typer.Option("--cached", help="linear: on stored features, without random crops; minutes, not hours.")
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
    predictions: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file for one row per test image; also predictions=FILE."),
    ] = None,
) -> None:
    """Evaluate the student and the teacher of a run, weights of another method, or stored features."""
    plain = [*([model] if model and ("=" in model or model.startswith("-")) else []), *(settings or [])]
    if plain and plain[0] == model:
        model = None
    model = weights or model
    for word in [word for word in plain if word.startswith("predictions=")]:
        predictions = Path(word.partition("=")[2])
        plain.remove(word)
    overrides = options.parse_protocol(context, protocol, plain)
    overrides |= {key: value for key, value in (("queries", queries), ("truth", truth)) if value is not None}
    if not data:
        raise ConfigError("--data is missing: give labelled images, e.g. --data LABELLED_FOLDER.")
    making = features.model_dump(exclude={"batch_size", "device"})
    from carp.commands.protocols import check_options

    check_options(protocol, cached=cached, test=test, features={**making, "baselines": baselines})
    options.check_model(model)
    options.check_data(data, test, queries)
    if model is None and out is None and protocol != "detection":
        out = Path()
    from carp.commands.evaluate import evaluate_branches
    from carp.commands.labelled import home_of
    from carp.encoders.model_argument import is_weights
    from carp.report.tables.summary import print_results

    if baselines and model is not None and is_weights(model):
        raise ConfigError("--baselines are those of a run: raw pixels and the encoder that it started from.")
    usual = ["teacher"] if protocol == "detection" else ["student", "teacher"]
    results, notes = evaluate_branches(
        protocol,
        model,
        data,
        branches=[*(branch or usual), *(["raw pixels", "untrained"] if baselines else [])],
        test=overrides.pop("test", test),  # a setting of detection
        cached=cached,
        predictions=predictions,
        out=out,
        features=features,
        quiet=False,
        **overrides,
    )
    if options.is_first_process():
        print_results(results)
        for note in notes:
            say(f"note: {note}", err=True)
        say(f"results: {home_of(model, out) / 'results'}")
        if predictions is not None:
            say(f"predictions: {predictions}")


@app.command("datasets")
def _datasets(
    root: Annotated[
        Path | None, typer.Option(help="Folder to look in; says what is there and how to get the rest.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON.")] = False,
) -> None:
    """List the data sets of the paper's evaluation."""
    from carp.commands.datasets import describe_datasets, list_datasets

    say_text(list_datasets(root) if as_json else describe_datasets(root))


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
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="screen, md, csv, latex or png.",
            autocompletion=completion.one_of("screen", "md", "csv", "latex", "png"),
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; .md, .csv, .tex or .png says the format.")] = None,
) -> None:
    """Put the results of several models into one table: best bold, second underlined."""
    from carp.commands.table import make_table, write_table
    from carp.files.outputs import check_output_file

    if out is not None:
        check_output_file(out)
    table, notes = make_table(results=results or [], paper_layout=layout, with_paper=with_paper, everything=everything)
    write_table(table, format=format, out=out)
    for note in notes:
        say(f"note: {note}", err=True)
    if out is not None:
        say(f"table: {out}")


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
        say_text(list_formats() if as_json else describe_formats())
    else:
        say_text(recognise_file(file) if as_json else describe_file(file))
