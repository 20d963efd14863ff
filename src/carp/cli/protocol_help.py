"""`carp eval PROTOCOL --help`: the usual help, and the settings of the protocol."""

import shutil
import textwrap
from typing import Any

import typer.core


class EvalCommand(typer.core.TyperCommand):
    """A command whose help depends on the first of its words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words: `--help` is answered before they are read."""
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Add the settings below the options, which Typer may have printed already."""
        from carp.commands.protocols import NAMES

        super().format_help(ctx, formatter)
        name = next((word for word in ctx.meta.get(__name__, ()) if word in NAMES), None)
        formatter.write(describe_protocol(name) if name else "`carp eval PROTOCOL --help` also lists its settings.")
        formatter.write("\n")


def describe_protocol(name: str) -> str:
    """The settings of a protocol: name, default, meaning."""
    from carp.commands.protocols import ALL, OF_ALL, find_protocol

    if name == ALL:
        return f"all is {', '.join(OF_ALL)} with their usual settings, linear with --cached; it takes no settings."
    width = min(shutil.get_terminal_size().columns, 120)
    lines = [f"Settings of {name}, written key=value; these are the defaults:"]
    for setting in find_protocol(name).settings().values():
        lines += [f"  {setting.written}"]
        lines += textwrap.wrap(setting.meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
