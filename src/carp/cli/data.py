"""Look at images before training on them: `carp data check`, `data attack`, `views`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from carp.cli import completion
from carp.cli.app import app, data_app
from carp.cli.options import (
    WITH_SETTINGS,
    Overrides,
    parse,
)
from carp.cli.output import say


@data_app.command("check", context_settings=WITH_SETTINGS)
def _check_data(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="Images of any kind (docs/data.md): a folder, a list, shards, ….")],
    settings: Overrides = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe that the images are meant for (`carp recipes`). Default: folder.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Look at so many images only, chosen at random.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Read every image: counts, sizes, formats, classes, broken files, duplicates, time per epoch.

    The exit code is 0 when every image can be read, 1 when some cannot, 2 when nothing could be checked.
    """
    overrides = parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.check_data import check_data

    found = check_data(data, recipe, limit=limit, quiet=as_json, **overrides)
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)
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
        say(f"left out: {problem}", err=True)
    say(f"originals: {made.originals:,}   copies: {made.copies:,}   manifest: {made.folder / 'manifest.json'}")
    if made.sheet is not None:
        say(f"sheet: {made.sheet}")


@app.command("views", context_settings=WITH_SETTINGS)
def _views(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help="An image, or images of any kind (docs/data.md): a folder, a list, ….")],
    settings: Overrides = None,
    out: Annotated[Path, typer.Option(help="The PNG to write.")] = Path("views.png"),
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe name (`carp recipes`) or YAML file. Default: folder.", autocompletion=completion.recipes
        ),
    ] = None,
    images: Annotated[int, typer.Option(min=1, max=100, help="How many images of a folder.")] = 3,
    draws: Annotated[int, typer.Option(min=1, max=100, help="How often the views of each are drawn.")] = 2,
) -> None:
    """Draw a sheet of images and their views, as the model sees them."""
    overrides = parse(context, [*([data] if data.startswith("-") else []), *(settings or [])])
    from carp.commands.views import views

    say(f"views: {views(data, recipe, out=out, images=images, draws=draws, **overrides)}")
