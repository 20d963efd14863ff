"""Tests compute with one thread: several would wait for each other beside other work or a second test process."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
