"""Tables, pages and verified files: `carp table`, `report`, `explore`, `weights`, `check`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from carp.cli import completion, options
from carp.cli.app import app
from carp.cli.output import say, say_text


@app.command("table")
def _table(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Result files (RUN/results/*.json), or run folders.")
    ] = None,
    with_paper: Annotated[
        bool, typer.Option("--with-paper", help="Also show the rows published in the paper.")
    ] = False,
    difference: Annotated[
        bool, typer.Option("--difference", help="Also show the differences from the published rows of CARP.")
    ] = False,
    layout: Annotated[
        str | None, typer.Option(help="Show the columns of one of the paper's tables (docs/tables.md).")
    ] = None,
    all: Annotated[  # noqa: A002 - the name of the option
        bool, typer.Option("--all", help="Show all values, not only those in the paper's tables.")
    ] = False,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="screen, md, csv, latex or png.",
            autocompletion=completion.one_of("screen", "md", "csv", "latex", "png"),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file; its suffix (.md, .csv, .tex or .png) sets the format.")
    ] = None,
) -> None:
    """Collect the results of several models in one table; the best is bold, the second best underlined."""
    from carp.commands.table import table
    from carp.report.tables.render import table_text, to_screen

    made = table(
        results or [],
        with_paper=with_paper,
        difference=difference,
        layout=layout,
        all=all,
        format=format,
        out=out,
    )
    if out is None and format in (None, "screen"):
        to_screen(made)
    elif out is None:
        sys.stdout.write(table_text(made, str(format)))
    for note in made.notes:
        say(f"note: {note}", err=True)
    if out is not None:
        say(f"table: {out}")


@app.command("report")
def _report(
    run: Annotated[list[str], typer.Argument(help="Run folder, or RUN@25; several are shown side by side.")],
    data: Annotated[
        str | None,
        typer.Option(help="Images to show: a folder or any other source (docs/data.md)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the page and one PNG per figure, a .html file for the page alone, or a .png file for all "
            "figures. Default: the sub-folder report of the run."
        ),
    ] = None,
    epoch: options.Epochs = None,
    limit: Annotated[int, typer.Option(min=1, help="Embed at most this many images, chosen at random.")] = 2000,
    images: Annotated[int, typer.Option(min=1, max=100, help="Number of images drawn with their partitions.")] = 3,
    root: Annotated[Path | None, typer.Option(help="Folder of torchvision's datasets.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Let torchvision download missing datasets.")] = False,
    device: options.Device = "auto",
) -> None:
    """Write a self-contained page about a run, or about several side by side: curves, diagnosis, a map of the images,
    prototypes and neighbours. Also write figures as PNG.
    """  # noqa: D205 - Typer shows the whole text
    for each in run:
        options.check_model(each)
    options.check_data(data)
    epochs = options.parse_epochs(run[0], epoch)
    from carp.commands.report_run import report_run

    drawn = report_run(
        run,
        data,
        out=out,
        epoch=epochs or None,
        limit=limit,
        images=images,
        root=root,
        download=download,
        device=device,
        quiet=False,
    )
    for note in drawn.notes:
        say(f"note: {note}", err=True)
    for path in dict.fromkeys(drawn.files.values()):
        say(f"{'page' if path == drawn.files.get('page') else 'figure'}: {path}")


@app.command("explore")
def _explore(
    features: Annotated[
        list[str],
        typer.Argument(help="Features written by `carp embed`, a run, RUN@25 or a .npy file; several are compared."),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Images: a folder or any other source (docs/data.md). Needed for a run, a .npy file or moved images."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder where selections can be saved as files or links. Default: they are only downloaded."),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the server. Default: any free port.")
    ] = None,
    open: Annotated[  # noqa: A002 - the name of the option
        bool, typer.Option("--open", help="Open the page in the default browser.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="The run or weights that extracted the features, if they have been moved.")
    ] = None,
    branch: Annotated[str, typer.Option(help="Encoder of a run: teacher or student.")] = "teacher",
    root: Annotated[Path | None, typer.Option(help="Folder of torchvision's datasets.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Let torchvision download missing datasets.")] = False,
    device: options.Device = "auto",
) -> None:
    """Explore images in a browser: map, neighbours, clusters, prototypes, near-duplicates; compare encoders.

    The page is served only to this machine, at an address with a random token. Press Ctrl-C to stop the server.
    """
    options.check_model(model)
    options.check_data(data)
    from carp.commands.explore import explore

    explorer = explore(
        features,
        data,
        out=out,
        port=port,
        open=open,
        model=model,
        branch=branch,
        root=root,
        download=download,
        device=device,
        quiet=False,
    )
    say(f"explorer: {explorer.address}   (Ctrl-C stops it)")
    explorer.wait()


@app.command("weights")
def _weights(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[[NAME:]FILE]", help="Weights file to identify. Default: list all formats."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the released weights of other methods that CARP reads, or identify a weights file.

    Nothing in a file is ever executed.
    """
    from carp.commands.weights import weights
    from carp.report.weights_list import describe_weights, describe_weights_file

    if file is None:
        listed = weights()
        text = describe_weights([row.method for row in listed])
        say_text(_as_json([row.as_dict() for row in listed]) if as_json else text)
    else:
        found = weights(file)
        say_text(_as_json(found.as_dict()) if as_json else describe_weights_file(found.found))


@app.command("check")
def _check(
    folder: Annotated[
        Path, typer.Argument(help="Run folder, features, index, checkpoint, export, or a folder of them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Verify every file that CARP wrote into a folder, using the digests of features, indexes, checkpoints and exports.

    The exit code is 0 if nothing is damaged, 1 if something is, and 2 if there is nothing to check.
    """
    from carp.commands.check_folder import check_folder

    found = check_folder(folder)
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)
    raise typer.Exit(0 if found.ok else 1)


def _as_json(values: Any) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False)
