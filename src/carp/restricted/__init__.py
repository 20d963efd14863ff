"""A restricted reader for untrusted files: it executes no code and stays within a memory budget.

The same reader handles all pickles: weights, ground truths and arrays. A pickle is a program. `machine` interprets its
instructions itself, supports only those that build values, and looks up every name in a vocabulary; no name resolves to
a function of another library. Lengths are compared with the bytes of the file, and every value is charged to a budget
before it is created.
"""

from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.values import read_plain_pickle

__all__ = ["Budget", "Damaged", "Refused", "read_plain_pickle"]
