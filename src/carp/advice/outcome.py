"""The advice as a whole, as values and as text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from carp.advice.encoder_probes import Probe
from carp.advice.image_findings import ImageFindings
from carp.advice.pilot import Pilots
from carp.advice.recommendation import Recommendation
from carp.advice.training_plan import TrainingPlan
from carp.console.quantities import counted, duration

_MEASURES = (
    "views: the share of random views of an image that find another view of it among all these images. It follows k-NN "
    "over the epochs of one encoder; between different encoders it is a hint."
)
_LEAVE_ONE_OUT = (
    "k-NN: the share of images whose nearest other images have their class. Series of similar images make it too good; "
    "labelled images of their own (--val) do not."
)
_HELD_OUT = "k-NN: the share of the validation images whose nearest neighbours have their class."


@dataclass(frozen=True)
class Advice:
    """The findings of `carp advise`."""

    findings: ImageFindings
    probes: list[Probe]
    leave_one_out: bool
    """Whether k-NN compares the images with each other, for lack of validation images."""
    pilots: Pilots | None
    recommendation: Recommendation
    command: str
    time: str
    plan: TrainingPlan | None
    """The training that is advised; None if none is."""
    notes: list[str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        pilots = self.pilots
        return {
            "schema": 1,
            "images": self.findings.as_dict(),
            "probes": [probe.as_dict() for probe in self.probes],
            "leave_one_out": self.leave_one_out,
            "pilots": None if pilots is None else {"runs": [r.as_dict() for r in pilots.runs], "notes": pilots.notes},
            "recommendation": {
                **self.recommendation.as_dict(),
                "command": self.command,
                "time": self.time,
                "plan": None if self.plan is None else self.plan.as_dict(),
            },
            "notes": self.notes,
            "seconds": self.seconds,
        }

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        yield from self.findings.lines()
        yield ""
        yield from self._probe_lines()
        if self.pilots is not None:
            yield ""
            yield from (f"pilot            {run.text()}" for run in self.pilots.runs)
            yield from (f"pilot            {note}" for note in self.pilots.notes)
        yield ""
        found = self.recommendation
        yield f"advice           {found.headline}"
        yield f"command          {self.command}"
        yield f"time             {self.time}"
        yield from (f"measured         {reason}" for reason in found.reasons)
        yield from (f"rule of thumb    {rule}" for rule in found.rules)
        yield from (f"not known        {unknown}" for unknown in found.unknown)
        yield from (f"note             {note}" for note in self.notes)
        yield f"({duration(self.seconds)})"

    def _probe_lines(self) -> Iterator[str]:
        shown = [*self.probes, *(run.probe for run in self.pilots.runs if self.pilots)] if self.pilots else self.probes
        first = shown[0]
        asked = "" if first.knn is None else f", k-NN on {counted(first.knn.images, 'image')}"
        yield f"encoders on {counted(first.views.images, 'image')}{asked}; in brackets, intervals of 95%"
        width = max(len("encoder"), *(len(probe.name) for probe in shown)) + 2
        labelled = any(probe.knn for probe in shown)
        yield f"  {'encoder':<{width}}{'pixels':>6}  {'views':<24}{'k-NN' if labelled else ''}".rstrip()
        for probe in shown:
            right = "" if probe.knn is None else f"{probe.knn.text()} ± {100 * probe.knn.error:.1f}"
            yield f"  {probe.name:<{width}}{probe.size:>6}  {probe.views.text():<24}{right}".rstrip()
        yield f"  {_MEASURES}"
        if labelled:
            yield f"  {_LEAVE_ONE_OUT if self.leave_one_out else _HELD_OUT}"
