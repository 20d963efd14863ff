"""CARP beside its peers: speed and quality, by commands that anyone can rerun."""

import carp  # noqa: F401 - before torch, so that its threads spin briefly beside other work (carp/compute/openmp.py)
