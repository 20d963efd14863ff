"""Verify what CARP wrote: `carp check`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from carp.cli.app import app
from carp.cli.output import say


@app.command("check")
def _check(
    folder: Annotated[
        Path, typer.Argument(help="Run folder, features, index, checkpoint, export, or a folder of them.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Verify every file that CARP wrote into a folder: digests of features, indexes, checkpoints and exports.

    The exit code is 0 if nothing is damaged, 1 if something is, and 2 if there is nothing to check.
    """
    from carp.commands.check_folder import check_folder

    found = check_folder(folder)
    for line in [json.dumps(found.as_dict())] if as_json else found.lines():
        say(line)
    raise typer.Exit(0 if found.ok else 1)
