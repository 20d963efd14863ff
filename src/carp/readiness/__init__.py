"""Whether this machine is ready for a run: one check per module, and `examination.py`, which runs them all.

A check is a generator of findings. It uses the functions that training uses, on a few images.
"""
