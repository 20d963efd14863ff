"""Runs the evaluations of the paper's tables one after the other; one that fails does not stop the others."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carp.compute import distributed
from carp.console.progress import Display
from carp.console.quantities import duration
from carp.errors import CarpError, Interrupted
from carp.evaluation.paper_tables.plan import Evaluation
from carp.evaluation.runner import run_protocols


@dataclass(frozen=True)
class FailedEvaluation:
    """An evaluation that ended with an error, and the command that runs it alone."""

    evaluation: Evaluation
    reason: str
    command: str

    def __str__(self) -> str:
        return f"{self.evaluation.title} failed: {self.reason} To run it alone: {self.command}"


@dataclass(frozen=True)
class Ran:
    """The outcome of evaluations, and notes on their results."""

    evaluations: tuple[Evaluation, ...]
    failed: tuple[FailedEvaluation, ...]
    notes: tuple[str, ...]


def run_evaluations(
    evaluations: Sequence[Evaluation],
    model: str | Path,
    *,
    branch: str,
    out: str | Path | None,
    quiet: bool,
) -> Ran:
    """Run the evaluations that are left, in the given order.

    An evaluation that fails is reported, and the next one begins. A signal ends all of them; so does a failure in one
    of several processes, which would no longer be in step with the others.
    """
    display = Display(quiet=quiet or not distributed.is_first())
    number, left = 0, sum(one.state == "to do" for one in evaluations)
    after, failed, notes = list[Evaluation](), list[FailedEvaluation](), list[str]()
    for one in evaluations:
        after.append(one)
        if one.result is not None:
            notes += one.protocol.notes(one.result)
        if one.state == "broken":
            failed.append(_failed(one, f"{one.presence.reason}.", model, branch, out))
        if one.state != "to do":
            continue
        number += 1
        display.say(f"{number} of {left}: {one.title}, about {duration(one.seconds)}")
        start = time.monotonic()
        try:
            (result,), said = run_protocols(
                [one.protocol],
                model,
                one.data,
                test=None,
                branches=[branch],
                options=one.options,
                out=out,
                quiet=quiet,
            )
        except Interrupted:
            raise
        except Exception as error:  # hours of other evaluations may follow; the command shows the traceback of a bug
            if distributed.world_size() > 1:
                raise
            failed.append(_failed(one, _reason(error), model, branch, out))
            display.warn(f"{one.title} failed: {failed[-1].reason}")
            continue
        display.say(f"{number} of {left}: {one.title}, done in {duration(time.monotonic() - start)}")
        after[-1] = replace(one, result=result)
        notes += said
    return Ran(tuple(after), tuple(failed), tuple(dict.fromkeys(notes)))


def _failed(one: Evaluation, reason: str, model: str | Path, branch: str, out: str | Path | None) -> FailedEvaluation:
    return FailedEvaluation(one, reason, one.command(model, branch, out))


def _reason(error: Exception) -> str:
    if isinstance(error, CarpError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split()).removesuffix('.')}."
