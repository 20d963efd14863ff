"""What a study says: means, noise, and whether the order is the paper's."""

from pathlib import Path

import pytest

from carp.studies.ablations import find_ablation
from carp.studies.agreement import agreement_lines, spearman
from carp.studies.job_result import JobResult, Measured
from carp.studies.points import Job
from carp.studies.published import published_ablations
from carp.studies.study import Study, pooled_deviation, rows_of


def study_of(name: str, percents: dict[tuple[str, str], list[float]], *, epochs: int = 100) -> Study:
    """A study with these accuracies of the teacher; the student's are two points lower. None is a run that diverged."""
    ablation = find_ablation(name)
    results = []
    for point in ablation.points(None, None, epochs=epochs):
        for seed, percent in enumerate(percents.get((point.value, point.variant), [])):
            accuracies = {"student": (percent - 2) / 100, "teacher": percent / 100}
            if point.variant == "without teacher":
                accuracies = {"student": percent / 100}
            measured = Measured(accuracies=accuracies, verdict="healthy", kl_to_uniform=0.1, seconds=1.0)
            results.append(JobResult.of(name, Job(point, seed), measured, kept=False, versions={}))
    rows = rows_of(results[::-1], list(ablation.variants))
    published = published_ablations().get(name)
    return Study(name, ablation.title, ablation.axis, ablation.scale, Path("out"), rows, published)


def test_spearman_on_known_values() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert spearman([86, 97, 99, 100, 101, 103, 106, 110, 112, 113], [2, 20, 28, 27, 50, 29, 7, 17, 6, 12]) == (
        pytest.approx(-29 / 165)  # the textbook example of IQ and hours of television
    )
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.75**0.5)  # ties share their rank
    assert spearman([5, 5, 5], [1, 2, 3]) is None


def test_means_and_deviations() -> None:
    study = study_of("batch-size", {("128", ""): [40, 42, 44], ("256", ""): [50], ("512", ""): [45, 47]})
    assert [row.point.value for row in study.rows] == ["128", "256", "512"]
    first = study.rows[0].branch("teacher")
    assert first is not None
    assert (first.mean, first.deviation, first.count) == pytest.approx((42, 2, 3))
    assert study.rows[0].branch("") == first
    single = study.rows[1].branch("student")
    assert single is not None
    assert (single.mean, single.deviation, single.count) == (pytest.approx(48), None, 1)
    pooled = pooled_deviation(study.rows)
    assert pooled is not None
    assert pooled[0] ** 2 == pytest.approx((2 * 4 + 1 * 2) / 3)
    assert pooled[1] == 3


def test_the_same_order_with_noise() -> None:
    lines = agreement_lines(
        study_of("batch-size", {("128", ""): [40, 42], ("256", ""): [50, 52], ("512", ""): [55, 57]})
    )
    assert lines[0].startswith("noise: ")
    assert "1.41 points (pooled, 3 degrees of freedom)" in lines[0]
    assert "differ by up to 15.0 points" in lines[0]
    assert lines[1:] == [
        "order: Spearman's rank correlation with the paper is +1.00 over 3 values; best value agrees (512), "
        "worst value agrees (128)."
    ]


def test_another_order_with_one_seed() -> None:
    lines = agreement_lines(study_of("batch-size", {("128", ""): [60], ("256", ""): [50], ("512", ""): [55]}))
    assert lines[0].startswith("one seed: noise unknown; ")
    assert "-0.50 over 3 values" in lines[1]
    assert "differs (128, the paper: 512; here 5.0 points apart)" in lines[1]
    assert "differs (256, the paper: 128; here 10.0 points apart)" in lines[1]


def test_a_difference_within_the_noise_is_called_one() -> None:
    percents = {("128", ""): [40.0, 42], ("256", ""): [50, 54], ("512", ""): [51, 52]}
    (_, order) = agreement_lines(study_of("batch-size", percents))
    assert "differs (256, the paper: 512; here 0.5 points apart, within the noise)" in order and "agrees (128)" in order


def test_too_few_values_and_no_published_ones() -> None:
    (_, order) = agreement_lines(study_of("batch-size", {("128", ""): [40], ("256", ""): [50]}))
    assert order == "order: 2 values in common with the paper, too few to compare."
    (noise, _) = agreement_lines(study_of("batch-size", {("128", ""): [40]}))
    assert noise == "one seed: noise unknown."
    (_, nothing) = agreement_lines(study_of("views", {("2", ""): [40], ("2+2", ""): [50]}))
    assert "the paper has no values for views" in nothing


def test_variants_are_compared_by_the_same_value() -> None:
    percents = {("32", "with teacher"): [50.0], ("32", "without teacher"): [49], ("64", "with teacher"): [48]}
    percents |= {("64", "without teacher"): [49], ("128", "with teacher"): [51], ("16384", "without teacher"): [1]}
    *_, last = agreement_lines(study_of("block-size", percents))
    assert last == "with teacher is better than without teacher for 1 of 2 values; in the paper, for 2."


def test_branches_are_compared_with_their_own_series_and_lengths_as_fractions() -> None:
    study = study_of("epochs", {(str(5 * n), ""): [40.0 + n] for n in (1, 2, 3, 4)}, epochs=20)
    _, student, teacher = agreement_lines(study)
    assert student.startswith("order (student): ") and "+1.00 over 4 values" in student
    assert teacher.startswith("order (teacher): ") and "+0.80 over 4 values" in teacher
    assert study.published_for(study.rows[0].point) == {"student": 51.98, "teacher": 53.874}
