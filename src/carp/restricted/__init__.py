"""Files from elsewhere, read within a budget and without running anything in them.

One reader for everything that is a pickle: weights, ground truths, arrays. A pickle is a program; `machine` carries out
its instructions itself, knows the ones that build values, and asks a vocabulary for every name. No name leads to a
function of another library. Lengths are compared with the bytes that are there, and every value is charged to a budget
before it is made.
"""

from carp.restricted.budget import Budget, Damaged, Refused
from carp.restricted.values import read_plain_pickle

__all__ = ["Budget", "Damaged", "Refused", "read_plain_pickle"]
