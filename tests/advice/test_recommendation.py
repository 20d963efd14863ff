"""The rules, one by one: from findings to an action, with reasons, and no promise that was not measured."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from carp.advice.encoder_probes import BASELINE, MODEL, PILOT, Probe
from carp.advice.image_findings import ImageFindings, NearCopies
from carp.advice.pilot import PilotRun, Pilots
from carp.advice.recommendation import Recommendation, best_model, recommend
from carp.advice.resampling import difference, interval
from carp.images.inspect.scan import Duplicates, Range, Scan
from carp.images.loading.quarantine import Unreadable

M = 200


def findings(images: int = 5000, *, broken: int = 0, copies: int = 0, **changes: Any) -> ImageFindings:
    size = Range(64, 64, 64)
    found = Scan(
        images=100,
        broken=[Unreadable(i, f"{i}.png", "damaged") for i in range(broken)],
        empty=0,
        formats={"PNG": 100 - broken},
        width=size,
        height=size,
        bytes_each=size,
        bytes_in_all=6400,
        classes={},
        duplicates=[Duplicates(copies + 1, ["a.png", "b.png"])] if copies else [],
        small=0,
    )
    return replace(ImageFindings("IMAGES", images, found, [], 0.0), **changes)


def probe(name: str, views: float, knn: float | None = None, kind: str = MODEL) -> Probe:
    """An encoder with these shares, right on the first images."""
    hits, right = (None if share is None else (np.arange(M) < share * M).astype(np.float64) for share in (views, knn))
    assert hits is not None
    return Probe(name, kind, 64, False, interval(hits), None if right is None else interval(right), 0.01, hits, right)


def baselines(views: float = 0.1, knn: float | None = None) -> list[Probe]:
    return [probe("raw pixels", views, knn, BASELINE), probe("untrained", views / 2, knn, BASELINE)]


def pilot(
    start: Probe | None, views: float, knn: float | None = None, *, scratch: bool = False, enough: bool = True
) -> PilotRun:
    measured = probe("pilot", views, knn, PILOT)
    changes = None, None
    if start is not None:
        labelled = (
            None if measured.right_M is None or start.right_M is None else difference(measured.right_M, start.right_M)
        )
        changes = difference(measured.hits_M, start.hits_M), labelled
    return PilotRun(
        "the pilot", None if start is None or scratch else start.name, 100, 3, 64, 60.0, enough, measured, *changes
    )


def text(found: Recommendation) -> str:
    return " ".join([found.headline, *found.reasons, *found.rules, *found.unknown])


def test_images_that_would_stop_a_run_are_cleaned_first() -> None:
    lite0 = probe("lite0", 0.5)
    for bad in (
        findings(broken=6),
        findings(copies=30),
        findings(defective=0.3),
        findings(near=NearCopies(100, 40, [], "lite0")),
    ):
        found = recommend(bad, [lite0, *baselines()], None)
        assert found.action == "clean"
        assert "lite0 can be used as it is" in text(found)
    for good in (findings(broken=5), findings(copies=20), findings(defective=0.2)):
        assert recommend(good, [lite0, *baselines()], None).action != "clean"


def test_few_images_are_not_trained_on() -> None:
    assert recommend(findings(299), baselines(), None).action == "collect"
    found = recommend(findings(299), [probe("lite0", 0.5), *baselines()], None)
    assert (found.action, found.model) == ("use", "lite0")
    assert found.rules
    assert recommend(findings(310, broken=4), baselines(), None).action == "collect"  # 298 can be read


@pytest.mark.parametrize(
    ("images", "views", "knn", "action"),
    [
        (5000, 0.6, None, "use"),  # clearly better than the baselines, no labels
        (5000, 0.1, None, "adapt"),  # no better than raw pixels
        (400_000, 0.1, None, "scratch"),  # the same, with many images
        (5000, 0.6, 0.97, "use"),  # little to gain
        (5000, 0.6, 0.7, "use"),  # something to gain, but also something to lose
        (5000, 0.6, 0.4, "adapt"),  # mostly wrong, and enough images
        (900, 0.6, 0.4, "use"),  # mostly wrong, but few images
    ],
)
def test_without_a_pilot_nothing_is_promised(images: int, views: float, knn: float | None, action: str) -> None:
    probes = [probe("lite0", views, knn), *baselines(0.1, None if knn is None else 0.2)]
    found = recommend(findings(images), probes, None)
    assert found.action == action
    assert "only a pilot can tell" in text(found)
    assert "improve" not in text(found).replace("No improvement is promised", "")


def test_without_any_model_training_starts_from_scratch() -> None:
    found = recommend(findings(), baselines(), None)
    assert (found.action, found.model) == ("scratch", None)
    assert "--model" in text(found)


def test_the_best_model_is_that_of_k_nn_then_of_views() -> None:
    by_labels = [probe("a", 0.9, 0.3), probe("b", 0.2, 0.6), *baselines(0.95, 0.9)]
    assert best_model(by_labels) == by_labels[1]
    by_views = [probe("a", 0.3), probe("b", 0.5), *baselines(0.9)]
    assert best_model(by_views) == by_views[1]
    assert best_model(baselines()) is None


def test_a_pilot_that_is_clearly_better_decides() -> None:
    lite0 = probe("lite0", 0.5, 0.5)
    probes = [lite0, *baselines(0.1, 0.2)]
    found = recommend(findings(), probes, Pilots([pilot(lite0, 0.4, 0.7)], []))  # k-NN counts, not the views
    assert (found.action, found.model) == ("adapt", "lite0")
    assert "k-NN +20.0 points (" in text(found)
    found = recommend(findings(), probes, Pilots([pilot(lite0, 0.4, 0.6), pilot(lite0, 0.4, 0.8, scratch=True)], []))
    assert (found.action, found.model) == ("scratch", None)


@pytest.mark.parametrize(("after", "words"), [(0.3, "worse than the start"), (0.505, "more than the uncertainty")])
def test_a_pilot_that_is_worse_or_uncertain_does_not(after: float, words: str) -> None:
    lite0 = probe("lite0", 0.5)
    found = recommend(findings(), [lite0, *baselines()], Pilots([pilot(lite0, after)], []))
    assert (found.action, found.model) == ("use", "lite0")
    assert words in text(found)
    assert "view retrieval" in text(found)


def test_a_pilot_on_few_images_says_so() -> None:
    lite0 = probe("lite0", 0.5)
    for after in (0.3, 0.9):
        probes = [lite0, *baselines()]
        assert "saw only 100 images" in text(
            recommend(findings(), probes, Pilots([pilot(lite0, after, enough=False)], []))
        )
        assert "saw only" not in text(recommend(findings(), probes, Pilots([pilot(lite0, after)], [])))


def test_a_pilot_on_few_images_does_not_speak_against_training() -> None:
    lite0 = probe("lite0", 0.6, 0.4)
    probes = [lite0, *baselines(0.1, 0.2)]
    for enough, action in ((False, "adapt"), (True, "use")):
        found = recommend(findings(), probes, Pilots([pilot(lite0, 0.3, 0.2, enough=enough)], []))
        assert found.action == action
        assert "k-NN -20.0 points (" in text(found)


def test_a_pilot_that_was_not_run_leaves_the_question_open() -> None:
    found = recommend(findings(), [probe("lite0", 0.5), *baselines()], Pilots([], ["not run: too few images."]))
    assert "only a pilot can tell" in text(found)


def test_a_pilot_without_a_model_is_a_run_from_scratch() -> None:
    found = recommend(findings(), baselines(), Pilots([pilot(None, 0.3)], []))
    assert found.action == "scratch"
    assert "view retrieval 30.0%" in text(found)
