"""The command `carp`, to which all other commands belong."""

from typing import Annotated

import typer

from carp._version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train image encoders without labels, evaluate them and use them.",
)

data_app = typer.Typer(no_args_is_help=True, help="Check images before training; make altered copies of them.")
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
    """Handle the options that come before a command."""
