"""`python -m carp`."""

from carp.cli import main

main()
