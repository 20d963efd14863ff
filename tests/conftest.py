"""Tests compute with one thread: several would wait for each other beside other work or a second test process."""

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
