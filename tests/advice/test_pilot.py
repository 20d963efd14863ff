"""A pilot trains on images that nothing is measured on, and is measured like the other encoders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import carp
from carp.advice import pilot
from carp.advice.encoder_probes import Probe, ProbeImages, choose_images, fitted, load_model, probe
from carp.advice.image_findings import look_at_images
from carp.advice.pilot import PilotPlan, TimedSizes, run_pilots, time_sizes, without
from carp.advice.training_plan import plan_training, training_command
from carp.errors import NonFiniteError
from carp.images.open_source import open_source
from carp.images.source import Source
from carp.images.sources.subset import Subset
from carp.runs.run_folder import Run
from carp.training.planning import time_budget
from tests.helpers import TINY, tiny_images

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time steps for a moment instead of seconds."""
    monkeypatch.setattr(pilot, "_SECONDS", 0.3)
    monkeypatch.setattr(time_budget, "SECONDS", 0.3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on 32 images."""
    out = tmp_path_factory.mktemp("start") / "run"
    carp.train(tiny_images(32), out, quiet=True, **{**TINY, "epochs": 1})
    return out


@pytest.fixture(scope="module")
def source() -> Source:
    return open_source(tiny_images(240, seed=1))


@pytest.fixture(scope="module")
def measured(run: Path, source: Source) -> tuple[ProbeImages, Probe]:
    model = load_model(run, None, "cpu")
    images = choose_images(source, None, [model], CPU, spare=True)
    return images, probe(model, images, CPU, lambda _done, _all: None)


def one_epoch(data: Any, out: Path, recipe: Any, *, minutes: float, **settings: Any) -> Run:
    """`train`, with one epoch instead of minutes."""
    assert minutes > 0
    return carp.train(data, out, recipe, epochs=1, **{**settings, "projector_hidden": 16, "num_prototypes": 64})


def test_a_pilot_is_measured_against_its_start_and_one_that_fails_is_a_note(
    source: Source, measured: tuple[ProbeImages, Probe], tmp_path: Path
) -> None:
    images, best = measured
    trained_on, said = list[Subset](), list[str]()

    def train(data: Subset, *words: Any, **settings: Any) -> Run:
        trained_on.append(data)
        if settings["start"] is None:
            raise NonFiniteError("the loss is not finite.")
        return one_epoch(data, *words, **settings)

    found = run_pilots(train, source, images, best, minutes=30, side=16, device="cpu", folder=tmp_path, say=said.append)
    (done,) = found.runs
    (note,) = found.notes
    assert len(said) == len(trained_on) == 2
    assert note == "from scratch: failed: the loss is not finite."
    assert (done.start, done.epochs, done.images, done.enough) == (best.name, 1, len(trained_on[0]), True)
    seen = {source.fetch(int(index)).tobytes() for index in images.used}  # type: ignore[union-attr]
    assert not seen & {trained_on[0].fetch(i).tobytes() for i in range(len(trained_on[0]))}  # type: ignore[union-attr]
    assert done.views_change is not None
    assert done.views_change.value == pytest.approx(done.probe.views.value - best.views.value)
    assert done.views_change.images == len(images.viewed)
    assert done.knn_change is None
    assert (done.size, done.probe.size, best.size) == (32, 32, 32)
    before = load_model(f"{tmp_path / 'pilot-0'}@0", best.size, "cpu")  # like is compared with like
    assert np.array_equal(probe(before, images, CPU, lambda _done, _all: None).hits_M, best.hits_M)
    assert done.as_dict()["views_change"]["low"] == done.views_change.low


def test_too_little_time_or_too_few_images_are_notes(
    source: Source, measured: tuple[ProbeImages, Probe], tmp_path: Path
) -> None:
    found = run_pilots(one_epoch, source, *measured, minutes=0.01, side=32, device="cpu", folder=tmp_path)
    assert not found.runs
    assert any("--pilot" in note for note in found.notes)
    few = Subset(source, np.arange(100))
    images = ProbeImages(Subset(few, np.arange(50)), None, None, np.arange(50))
    found = run_pilots(one_epoch, few, images, measured[1], minutes=1, side=32, device="cpu", folder=tmp_path)
    assert (found.runs, len(found.notes)) == ([], 1)
    assert "50 images" in found.notes[0]


def test_a_pilot_leaves_enough_images_and_uses_all_that_are_left(
    source: Source, measured: tuple[ProbeImages, Probe]
) -> None:
    images, best = measured
    rest = without(source, images)
    assert len(images.used) <= len(source) / 3
    assert sorted([*rest.indices, *images.used]) == list(range(len(source)))
    timed = time_sizes(rest, best.name, best, 30.0, 32, "cpu")
    assert timed.plan(30.0) == PilotPlan(best.name, None, {"global_size": 32}, 32, len(rest), enough=True)


def test_less_time_means_smaller_views_then_fewer_images() -> None:
    timed = TimedSizes("lite0", None, {}, [(224, {}, 0.1), (112, {}, 0.02)], 5000)
    for minutes, size, images, enough in ((15, 224, 1580, True), (4, 112, 1960, True), (1, 112, 340, False)):
        plan = timed.plan(minutes)
        assert (plan.size, plan.images, plan.enough) == (size, images, enough)
    assert timed.plan(0.1).images == 0


def test_the_plan_is_a_command_that_fits_into_the_time(run: Path, source: Source) -> None:
    plan = plan_training("IMAGES", source, start=str(run), side=32, size=32, minutes=1, device="cpu")
    assert plan.command == f"carp train IMAGES --from {run} --minutes 1 global_size=32 --out runs/advised"
    assert 1 <= plan.epochs <= plan.recipe_epochs == 100
    assert plan.seconds[0] <= 60
    assert (plan.caution is None) == (plan.epochs >= 20)
    assert (plan.images, plan.size, plan.minutes) == (len(source), 32, 1)


def test_a_command_can_be_copied_and_holds_no_secret() -> None:
    command = training_command(
        "my photos", start="lite0", recipe="adapt", validation="a'b", minutes=7.5, settings=["global_size=96"]
    )
    assert command.startswith("carp train 'my photos' --from lite0 --val 'a'\"'\"'b' --recipe adapt --minutes 7.5 ")
    secret = "https://user:password@host/a.tar?Signature=abc"
    command = training_command(secret, start=None, recipe=None, minutes=60, settings=[])
    assert "https://host/a.tar" in command
    assert not any(word in command for word in ("password", "Signature"))


def test_images_are_not_enlarged_much(run: Path) -> None:
    model = load_model(run, None, "cpu")
    assert fitted(model, 500).size == model.size == 32
    large = load_model(run, 224, "cpu")
    assert (fitted(large, 43).size, fitted(large, 112).size) == (96, 224)
    assert (model.resized, large.resized, fitted(replace(large, resized=False), 43).resized) == (False, True, True)


def test_copies_and_sizes_are_found_in_the_sample() -> None:
    images = tiny_images(20)
    images[7] = images[3]
    found = look_at_images(open_source(images))
    assert (found.images, found.usable, found.side) == (20, 19, 32)
    assert found.surplus == pytest.approx(0.05)
