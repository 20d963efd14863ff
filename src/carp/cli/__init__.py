"""The command line. Torch is imported by the commands that need it, so that `--help` answers at once."""

from carp.cli.entry import main

__all__ = ["main"]
