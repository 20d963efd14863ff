"""Exceptions for users' mistakes. A message states the cause, the value received and the remedy.

The command line prints the message of a `CarpError` on one line and exits with its `exit_code`; anything else is a
bug in CARP and shows a traceback.
"""

import re
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches


class CarpError(Exception):
    """Base of all errors that are meant for the user."""

    exit_code = 2


class ConfigError(CarpError):
    """An unknown key, a bad value, or values that contradict each other."""


class DataError(CarpError):
    """A path, an image or a dataset that cannot be used."""


class UnreadableImageError(DataError):
    """One image that cannot be read: `place` identifies it and `reason` explains why."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"cannot read the image {place}: {reason}.")
        self.place, self.reason = place, reason


class CheckpointError(CarpError):
    """A run folder or a checkpoint that cannot be read, written or resumed."""


class ModelError(CarpError):
    """An encoder that cannot be built, or tensors whose shapes do not fit together."""


class MissingExtraError(CarpError):
    """An optional dependency that is needed now and is not installed."""


class CollapseError(CarpError):
    """Training collapsed and `on_collapse: stop` was set."""

    exit_code = 3


class NonFiniteError(CarpError):
    """The loss or a gradient is not a finite number."""

    exit_code = 4


class BadImagesError(DataError):
    """More images cannot be read than `max_bad_share` allows."""

    exit_code = 5


class StorageError(DataError):
    """Reading failed repeatedly because of the storage or the network, not because of the data."""

    exit_code = 7


class ProcessError(CarpError):
    """Another process of the run hangs, was killed or is unreachable."""

    exit_code = 6


class Interrupted(CarpError):  # noqa: N818 - not a mistake: a signal asked the run to stop, and it did
    """A signal stopped the run after its state was saved."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class CarpWarning(UserWarning):
    """Something that deserves attention but is not an error; one line on the command line."""


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def received(value: object) -> str:
    """Format a value for a message, even if it is very long or deeply nested."""
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer with more digits than Python converts
        return f"a {type(value).__name__} that is too large to show"


def requirement(message: str) -> str:
    """Return the requirement in a message of pydantic, such as 'must be a valid integer'."""
    message = message.replace("Input should be", "must be").replace("Value error, ", "")
    return re.sub(r"(valid \w+), (unable to parse|got a number) .*", r"\1", message)


def plain(error: DataError) -> DataError:
    """Return the error in a form that can be sent to another process: its message, and a class with its exit code."""
    kind = next((kind for kind in (BadImagesError, StorageError) if isinstance(error, kind)), DataError)
    return kind(str(error))


def nearest(word: object, accepted: Iterable[str]) -> str:
    """Return ' Did you mean …?' for the closest accepted spelling, or those that begin with the word; or nothing."""
    known = list(accepted)
    close = get_close_matches(str(word), known, n=1, cutoff=0.6)
    offered = close or [each for each in known if word and each.startswith(f"{word}_")][:3]
    return f" Did you mean {' or '.join(map(repr, offered))}?" if offered else ""
