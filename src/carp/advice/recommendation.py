"""The rules: from what was found to what to do, with the reasons and what is not known.

Only a pilot can show that training helps, so without one nothing here says that it will. The thresholds are rules of
thumb, and every reason that rests on one says so.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from carp.advice.encoder_probes import BASELINE, MODEL, Probe
from carp.advice.image_findings import ImageFindings
from carp.advice.pilot import PilotRun, Pilots
from carp.advice.resampling import Interval, difference
from carp.console.quantities import counted

Action = Literal["use", "adapt", "scratch", "collect", "clean"]
FEW_IMAGES = 300  # as in `sizes_for`: fewer are too few to hold some out
ENOUGH_TO_ADAPT = 1000
ENOUGH_FOR_SCRATCH = 300_000  # from here on, random weights may be as good a start as those of ImageNet
UNREADABLE, MESSY = 0.05, 0.25  # shares of the images; the first is the default of max_bad_share
GOOD, POOR = 0.9, 0.5  # accuracies: little is left to gain, and most images are classified wrongly


@dataclass(frozen=True)
class Recommendation:
    """What to do, and why."""

    action: Action
    model: str | None
    headline: str
    reasons: list[str]
    """What was measured."""
    rules: list[str]
    """What is only a rule of thumb."""
    unknown: list[str]
    """What was not measured."""

    def as_dict(self) -> dict[str, Any]:
        """Return all values as plain types, for JSON."""
        return asdict(self)


def recommend(findings: ImageFindings, probes: list[Probe], pilots: Pilots | None) -> Recommendation:
    """Apply the rules in their order; the first that holds decides."""
    best = best_model(probes)
    for rule in (_clean, _few):
        if (found := rule(findings, best)) is not None:
            return found
    without = _without_pilot(findings, best, probes)
    return _by_pilot(best, pilots.runs, without) if pilots is not None and pilots.runs else without


def best_model(probes: list[Probe]) -> Probe | None:
    """Return the best model: by k-NN if there are labels, otherwise by its views; the first of equals."""
    models = [probe for probe in probes if probe.kind == MODEL]
    return max(models, key=lambda p: (p.knn.value if p.knn else 0.0, p.views.value), default=None)


def _clean(findings: ImageFindings, best: Probe | None) -> Recommendation | None:
    """Images that would stop a run or spoil what it learns."""
    surplus = max(findings.surplus, _near_share(findings))
    shares = {
        "cannot be read": (findings.unreadable, UNREADABLE),
        "are copies of others": (surplus, MESSY),
        "have a defect (blurry, dark, …)": (findings.defective, MESSY),
    }
    bad = [f"{share:.0%} of the images {what}" for what, (share, limit) in shares.items() if share > limit]
    if not bad:
        return None
    until = f" Until then, {best.name} can be used as it is." if best is not None else ""
    return Recommendation(
        "clean",
        None if best is None else best.name,
        "clean the images first",
        [f"{', '.join(bad)}, in the sample.{until}"],
        [
            f"Clean first if more than {UNREADABLE:.0%} cannot be read (a run would stop), or more than {MESSY:.0%} "
            "are copies or have a defect."
        ],
        ["Whether these images are wrong: dark or blurry ones may be what you want to recognise. Look at them."],
    )


def _near_share(findings: ImageFindings) -> float:
    near = findings.near
    return near.surplus / near.looked_at if near is not None and near.looked_at else 0.0


def _few(findings: ImageFindings, best: Probe | None) -> Recommendation | None:
    if findings.usable >= FEW_IMAGES:
        return None
    reason = f"{counted(findings.usable, 'image')} can be read and are no copies."
    rule = f"Fewer than {FEW_IMAGES} images are too few to train on, and to find out whether training helped."
    if best is None:
        return Recommendation("collect", None, "collect more images", [reason], [rule], [_NO_MODEL])
    unknown = "Whether more images would change this: with more, ask again."
    return Recommendation("use", best.name, f"use {best.name} as it is", [reason, _measured(best)], [rule], [unknown])


_NO_MODEL = "How good given weights are: none were measured. Give some with --model, or install the extra `start`."
_SCRATCH = "train from scratch"
_ONLY_A_PILOT = "Whether training helps: only a pilot can tell (--pilot MINUTES). No improvement is promised."


def _by_pilot(best: Probe | None, runs: list[PilotRun], without: Recommendation) -> Recommendation:
    """What the pilots measured decides; pilots on few images can speak for training, but not against it."""
    longer = (
        "What a longer run on all images gives: a pilot shows the direction, not the size of the change. A run is "
        "compared with its start while it trains, and its best checkpoint is kept."
    )
    short = [
        f"Whether a longer pilot would say the same: {run.name} saw only {counted(run.images, 'image')}, which says "
        "little about a run on all of them. Repeat it with more minutes, or on a faster machine."
        for run in runs
        if not run.enough
    ]
    if best is None:
        (run,) = runs
        reason = f"There is no model to start from. After the pilot ({run.text()}): {_measured(run.probe)}"
        return Recommendation("scratch", None, _SCRATCH, [reason], [], [*short, longer, _NO_MODEL])
    changes = [(run, change) for run in runs if (change := _change(run)) is not None]
    reasons = [f"{run.text()}: {_what(run)} {change.points()} against {best.name} as it is." for run, change in changes]
    better = [(run, change) for run, change in changes if change.low > 0]
    if better:
        run, _ = max(better, key=lambda pair: pair[1].value)
        if run.start is None:
            return Recommendation("scratch", None, _SCRATCH, reasons, [], [*short, longer])
        return Recommendation("adapt", run.start, f"adapt {run.start}", reasons, [], [*short, longer])
    if not any(run.enough for run in runs):
        reasons.append("No pilot saw enough images to speak against training.")
        return replace(without, reasons=[*without.reasons, *reasons], unknown=[*short, *without.unknown])
    if all(change.high < 0 for _, change in changes):
        reasons.append("Every pilot was worse than the start.")
    else:
        reasons.append("No pilot was better than the start by more than the uncertainty.")
    later = "Whether a longer run, or gentler settings, would help: a longer pilot can tell (--pilot MINUTES)."
    unknown = [*short, later]
    return Recommendation("use", best.name, f"use {best.name} as it is", [*reasons, _measured(best)], [], unknown)


def _change(run: PilotRun) -> Interval | None:
    return run.views_change if run.knn_change is None else run.knn_change


def _what(run: PilotRun) -> str:
    return "view retrieval" if run.knn_change is None else "k-NN"


def _without_pilot(findings: ImageFindings, best: Probe | None, probes: list[Probe]) -> Recommendation:
    """What the model does now decides; whether training helps is not known."""
    if best is None:
        reason = f"No model was given, and {counted(findings.usable, 'image')} can be trained on."
        return Recommendation("scratch", None, _SCRATCH, [reason], [], [_ONLY_A_PILOT, _NO_MODEL])
    other = _as_good(best, probes)
    if other is not None:
        reasons = [_measured(best), f"{best.name} is not clearly better than {other} on these images."]
        rule = f"From {ENOUGH_FOR_SCRATCH:,} images on, random weights are as good a start as given ones."
        if findings.usable >= ENOUGH_FOR_SCRATCH:
            return Recommendation("scratch", None, _SCRATCH, reasons, [rule], [_ONLY_A_PILOT])
        return Recommendation("adapt", best.name, f"adapt {best.name}", reasons, [rule], [_ONLY_A_PILOT])
    reasons = [_measured(best), f"{best.name} is clearly better than raw pixels and an untrained encoder."]
    if best.knn is not None and best.knn.value < POOR and findings.usable >= ENOUGH_TO_ADAPT:
        reasons.append(f"Still, {100 * (1 - best.knn.value):.0f}% are classified wrongly by k-NN.")
        rule = f"With at least {ENOUGH_TO_ADAPT:,} images and an accuracy below {POOR:.0%}, adapting is worth a try."
        return Recommendation("adapt", best.name, f"adapt {best.name}", reasons, [rule], [_ONLY_A_PILOT])
    rules, unknown = list[str](), [_ONLY_A_PILOT]
    if best.knn is None:
        unknown.insert(0, "How well it separates your classes: give labelled images with --val.")
    elif best.knn.low >= GOOD:
        rules.append(f"Above {GOOD:.0%}, little is left to gain.")
    elif best.knn.value >= POOR:
        rules.append(f"From {POOR:.0%} to {GOOD:.0%}, training may help or harm: try a pilot before you decide.")
    else:
        rules.append(f"Fewer than {ENOUGH_TO_ADAPT:,} images are too few to adapt weights.")
    return Recommendation("use", best.name, f"use {best.name} as it is", reasons, rules, unknown)


def _as_good(best: Probe, probes: list[Probe]) -> str | None:
    """Return a baseline that the model does not clearly exceed; None if it exceeds both."""
    for other in probes:
        if other.kind != BASELINE:
            continue
        if best.right_M is not None and other.right_M is not None:
            ahead = difference(best.right_M, other.right_M)
        else:
            ahead = difference(best.hits_M, other.hits_M)
        if ahead.low <= 0:
            return other.name
    return None


def _measured(probe: Probe) -> str:
    labelled = "" if probe.knn is None else f", k-NN {probe.knn.text()} of {counted(probe.knn.images, 'image')}"
    return f"{probe.name}: view retrieval {probe.views.text()} of {counted(probe.views.images, 'image')}{labelled}."
