"""Commands about images: `carp data check`, `data attack`, `advise`, `views`, `datasets`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from carp.cli import completion
from carp.cli.app import app, data_app
from carp.cli.options import (
    WITH_SETTINGS,
    Device,
    Overrides,
    PlannedRecipe,
    check_data,
    check_model,
    parse,
)
from carp.cli.output import say, say_text


@data_app.command("check", context_settings=WITH_SETTINGS)
def _check_data(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    settings: Overrides = None,
    recipe: PlannedRecipe = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Check at most this many images, chosen at random.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read every image and report counts, sizes, formats, classes, broken files, duplicates and time per epoch.

    The exit code is 0 if every image can be read, 1 if some cannot, and 2 if nothing could be checked.
    """
    overrides = parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.check_data import check_data

    found = check_data(data, recipe, limit=limit, quiet=as_json, **overrides)
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)
    raise typer.Exit(0 if found.ok else 1)


@data_app.command("attack")
def _attack(
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    out: Annotated[Path, typer.Option(help="Output folder; rerun the same command to resume.")],
    attacks: Annotated[
        list[str] | None, typer.Option(help="An attack (jpeg, crop, text, …); can be repeated. Default: all.")
    ] = None,
    every_strength: Annotated[
        bool,
        typer.Option(
            "--every-strength", help="Apply each attack at all of its strengths instead of one chosen per image."
        ),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many images, chosen by the seed.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    sheet: Annotated[
        Path | None, typer.Option(help="Also write a contact sheet of some images and their copies to this .png file.")
    ] = None,
) -> None:
    """Create a labelled set for copy detection: originals and altered copies of them."""
    from carp.commands.attack import attack

    names = [name for words in attacks or [] for name in words.split(",")]
    made = attack(
        data, out=out, attacks=names, every_strength=every_strength, limit=limit, seed=seed, sheet=sheet, quiet=False
    )
    for problem in made.unreadable:
        say(f"skipped: {problem}", err=True)
    say(f"originals: {made.originals:,}   copies: {made.copies:,}   manifest: {made.folder / 'manifest.json'}")
    if made.sheet is not None:
        say(f"sheet: {made.sheet}")


@app.command("advise")
def _advise(
    data: Annotated[str, typer.Argument(help="Images: a folder, a list, shards or any other source (docs/data.md).")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="A run or weights to measure (docs/weights.md), besides lite0; can be repeated."),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--val", "--validation", help="Labelled images, to measure k-NN. Default: the labels of the images, if any."
        ),
    ] = None,
    pilot: Annotated[
        float | None, typer.Option(help="Train for this many minutes, to measure whether training helps.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="The time that you have for training. Default: 60.")] = None,
    size: Annotated[
        int | None,
        typer.Option(help="Side of the images for the models. Default: their own, or twice that of smaller images."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for advice.json and advice.html, a page with examples of defects.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of datasets.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Let torchvision download missing datasets.")] = False,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Is training worth it? Examine images and encoders, and recommend what to do, with its time and uncertainty."""
    check_data(data, validation)
    for each in model or ():
        check_model(each)
    from carp.commands.advise import advise

    found = advise(
        data,
        model=model,
        validation=validation,
        pilot=pilot,
        minutes=minutes,
        size=size,
        out=out,
        root=root,
        download=download,
        device=device,
        quiet=as_json,
    )
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)


@app.command("views", context_settings=WITH_SETTINGS)
def _views(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="An image file, a folder of images or any other source (docs/data.md).")],
    settings: Overrides = None,
    out: Annotated[Path, typer.Option(help="Output file (.png).")] = Path("views.png"),
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (`carp recipes`) or YAML file. Default: folder.", autocompletion=completion.recipes
        ),
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=100, help="Number of images, evenly spread over the data.")] = 3,
    draws: Annotated[int, typer.Option(min=1, max=100, help="Number of epochs whose views are drawn.")] = 2,
) -> None:
    """Draw a contact sheet of images and the views that training would use."""
    overrides = parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.views import views

    say(f"views: {views(data, recipe, out=out, images=images, draws=draws, **overrides)}")


@app.command("datasets")
def _datasets(
    root: Annotated[
        Path | None, typer.Option(help="Folder of datasets; shows which ones it contains and how to get the others.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all details as JSON.")] = False,
) -> None:
    """List the datasets of the paper's evaluation."""
    from carp.commands.datasets import datasets
    from carp.report.dataset_list import describe_datasets

    listed = datasets(root)
    say_text(json.dumps([row.as_dict() for row in listed], indent=1) if as_json else describe_datasets(listed, root))
