"""Standard output of the command line, with unprintable characters of names escaped (`carp.console.printable`)."""

import typer

from carp.console.printable import printable


def say(line: str, *, err: bool = False) -> None:
    """Print one line; a line break in it belongs to a name and is escaped."""
    typer.echo(printable(line), err=err)


def say_text(text: str) -> None:
    """Print text that CARP composed, with its line breaks."""
    typer.echo(printable(text, keep="\n"))
