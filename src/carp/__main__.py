"""`python -m carp`."""

from carp.cli import console

console()
