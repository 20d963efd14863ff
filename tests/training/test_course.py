"""What a run remembers about its start: how far its weights moved, how much it gained, and all of it saved."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from carp.training.course import Course
from carp.training.health import Health, Verdict

HEALTH = Health(
    uncertainty=0.9,
    imbalance=0.05,
    prototypes_used=0.8,
    prototypes_used_if_even=0.9,
    duplicate_prototypes=0.0,
    effective_rank=60.0,
    full_rank=127,
    spread=0.95,
    agreement=0.6,
    agreement_error=0.02,
)


def encoder():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 100))


def move(module, share):
    """Move every matrix by a share of its norm; vectors, which do not count, by much more."""
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(1 + share) if p.ndim > 1 else p.add_(100)


@pytest.mark.parametrize("share", [0.0, 1e-5, 0.15, 3.0])
def test_weight_change_is_relative_to_the_start(share):
    module = encoder()
    course = Course(module)
    move(module, share)
    course.judge(50, HEALTH)
    assert course.progress.weight_change == pytest.approx(share, rel=0.01, abs=1e-7)


def test_weight_change_of_large_tensors_is_estimated_from_a_sample_of_them():
    module = nn.Linear(500, 500, bias=False)
    course, start = Course(module), module.weight.detach().clone()
    with torch.no_grad():
        module.weight += 0.1 * torch.randn(500, 500, generator=torch.Generator().manual_seed(1))
    course.judge(50, HEALTH)
    exact = float((module.weight.detach() - start).norm() / start.norm())
    assert course.progress.weight_change == pytest.approx(exact, rel=0.05)


def test_gain_is_the_mean_of_the_last_three_measurements_less_the_start_in_standard_errors():
    course = Course(encoder())
    course.judge(1, HEALTH)
    assert course.progress.gain == 0.0
    for step, agreement in ((10, 0.1), (20, 0.7), (30, 0.75), (40, 0.8)):
        course.judge(step, replace(HEALTH, agreement=agreement))
    assert course.progress.gain == pytest.approx((0.75 - 0.6) / (0.02**2 + 0.02**2 / 3) ** 0.5)


def test_perfect_agreement_from_the_start_is_no_gain():
    course = Course(encoder())
    perfect = replace(HEALTH, agreement=1.0, agreement_error=0.0)
    course.judge(1, perfect)
    course.judge(50, perfect)
    assert course.progress.gain == 0.0


def test_the_same_measurements_give_another_verdict_for_another_start():
    verdicts = []
    for agreement in (0.6, 0.85):
        module = encoder()
        course = Course(module)
        course.judge(1, replace(HEALTH, agreement=agreement))
        move(module, 0.15)
        verdicts.append(course.judge(200, replace(HEALTH, agreement=0.85)).verdict)
    assert verdicts == [Verdict.HEALTHY, Verdict.NOT_LEARNING]


def test_labels_decide_with_the_better_of_student_and_teacher():
    module = encoder()
    course = Course(module)
    course.judge(1, HEALTH)
    move(module, 0.15)
    course.baselines = {"knn_raw_pixels": 0.45, "knn_untrained": 0.16}
    for knn, verdict in (
        ({}, Verdict.HEALTHY),
        ({"knn_student": 0.44, "knn_teacher": 0.14}, Verdict.BELOW_PIXELS),
        ({"knn_student": 0.14, "knn_teacher": 0.46}, Verdict.HEALTHY),
        ({"knn_student": 0.148}, Verdict.NOT_LEARNING),
    ):
        course.knn = knn
        assert course.judge(200, replace(HEALTH, agreement=0.85)).verdict is verdict


def test_a_continued_run_judges_as_one_that_was_never_stopped():
    whole, stopped = Course(encoder()), Course(encoder())
    whole.baselines = stopped.baselines = {"knn_raw_pixels": 0.1, "knn_untrained": 0.3}
    collapsed = replace(HEALTH, imbalance=0.9, agreement=0.7234567891234567)
    for step in (1, 20, 40):
        whole.judge(step, collapsed)
        stopped.judge(step, collapsed)
    whole.knn = stopped.knn = {"knn_student": 0.2}
    continued = Course(encoder())
    continued.restore(json.loads(json.dumps(stopped.state())), stopped.tensors())
    assert continued.collapsed_in_a_row == 3
    now = replace(HEALTH, agreement=0.65)
    assert continued.judge(60, now) == whole.judge(60, now)
    assert continued.progress == whole.progress
    assert continued.state() == whole.state()


@pytest.mark.parametrize("start", [{}, {"health_at_start": None}, {"health_at_start": {"spread": 0.9}}])
def test_the_state_of_an_older_version_is_enough(start):
    course = Course(encoder())
    course.restore({"collapsed_in_a_row": 2, **start}, {})
    assert course.start is None
    assert course.collapsed_in_a_row == 2
    assert course.judge(500, HEALTH).verdict is Verdict.NOT_LEARNING  # its weights have not moved
    assert course.start is None


def test_the_start_of_a_run_without_certainty_is_still_its_start():
    course = Course(encoder())
    start = {name: value for name, value in HEALTH.as_dict().items() if value is not None}
    assert "certainty" not in start
    course.restore({"collapsed_in_a_row": 0, "health_at_start": start}, {})
    assert course.start == HEALTH


def test_imported_weights_are_the_start_of_a_run():
    imported = Course(encoder())
    imported.restore({"collapsed_in_a_row": 0, "imported_at": 600}, {})
    first = imported.judge(650, HEALTH)
    assert first.verdict is Verdict.TOO_EARLY
    assert imported.progress.steps == 50
    assert imported.start == HEALTH
    moved = Course(encoder())
    moved.restore(imported.state(), {"course.weights": 2 * imported.tensors()["course.weights"]})
    moved.judge(700, HEALTH)
    assert moved.progress.weight_change == pytest.approx(0.5)
    assert Course(encoder()).tensors() == {}


def test_the_best_validation_of_a_run_with_a_start_is_kept_and_saved():
    course = Course(encoder(), given=True)
    course.validated(0, {"knn_raw_pixels": 0.9, "knn_start": 0.5})
    assert course.best == (0, 0.5)
    assert course.comparison() is None
    for step, teacher in ((10, 0.4), (20, 0.6), (30, 0.6), (40, 0.55)):
        course.validated(step, {"knn_student": 0.99, "knn_teacher": teacher})  # the teacher decides
    assert course.best == (20, 0.6)
    found = course.comparison()
    assert (found.measure, found.now, found.start, found.best, found.best_step) == ("k-NN", 0.55, 0.5, 0.6, 20)
    saved = json.loads(json.dumps(course.state()))
    again = Course(encoder(), given=True)
    again.restore(saved, course.tensors())
    assert again.best == course.best
    assert again.comparison() == found


def test_a_run_without_labels_is_compared_by_its_own_measure():
    course = Course(encoder(), given=True)
    course.validated(0, {"label_free_start": 0.3})
    course.validated(10, {"label_free_teacher": 0.2})
    assert course.best == (0, 0.3)
    assert "held-out" in course.comparison().measure
    assert course.judge(50, HEALTH).verdict is Verdict.WORSE


def test_without_labels_a_gain_within_the_noise_does_not_replace_the_start():
    course = Course(encoder(), given=True)
    course.validated(0, {"label_free_start": 0.3, "label_free_standard_error": 0.05})
    course.validated(10, {"label_free_teacher": 0.34})
    assert course.best == (0, 0.3)
    assert course.comparison().noise == 0.05
    course.validated(20, {"label_free_teacher": 0.36})
    assert course.best == (20, 0.36)
    course.validated(30, {"label_free_teacher": 0.37})  # among checkpoints of the run, the higher one
    assert course.best == (30, 0.37)
    again = Course(encoder(), given=True)
    again.restore(json.loads(json.dumps(course.state())), course.tensors())
    assert again.comparison() == course.comparison()


def test_a_run_from_random_weights_has_no_best():
    course = Course(encoder())
    course.validated(0, {"knn_raw_pixels": 0.9, "knn_untrained": 0.5})
    course.validated(10, {"knn_student": 0.8, "knn_teacher": 0.8})
    assert course.best is None
    assert course.comparison() is None
    assert "best" not in course.state()


def test_given_weights_are_part_of_the_checkpoints():
    module = encoder()
    course = Course(module, given=True)
    tensors = {name: t.clone() for name, t in course.tensors().items()}
    move(module, 0.2)
    again = Course(module, given=True)  # built from the moved weights
    again.restore(course.state(), tensors)
    again.judge(50, HEALTH)
    assert again.progress.weight_change == pytest.approx(0.2, rel=0.01)
