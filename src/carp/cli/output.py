"""Standard output of the command line. Names of files are printed harmlessly (`carp.console.printable`)."""

import typer

from carp.console.printable import printable


def say(line: str, *, err: bool = False) -> None:
    """Print one line; a line break within it is part of a name and is escaped."""
    typer.echo(printable(line), err=err)


def say_text(text: str) -> None:
    """Print lines that CARP itself put together."""
    typer.echo(printable(text, keep="\n"))
