"""The command `carp` itself, which all others are part of."""

from typing import Annotated

import typer

from carp._version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn image encoders without labels, and use them.",
)

data_app = typer.Typer(no_args_is_help=True, help="Look at images before training on them; make copies of them.")
app.add_typer(data_app, name="data")


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
