"""The registry of ablations: every row can be used as it is, and its values are read as people write them."""

import pytest

from carp.config import Config, resolve
from carp.errors import ConfigError
from carp.studies.ablations import ABLATIONS, Ablation, find_ablation
from carp.studies.points import Job, all_jobs
from carp.studies.published import published_ablations


@pytest.mark.parametrize("ablation", ABLATIONS.values(), ids=list(ABLATIONS))
def test_every_point_of_every_grid_is_a_configuration_of_its_own(ablation: Ablation) -> None:
    points = ablation.points(None, None, epochs=100)
    base = {"num_prototypes": 65536, **ablation.adapt({}, 224)}
    made = {resolve({**base, **point.settings}, num_images=100_000).model_dump_json() for point in points}
    assert len(made) == len(points) == len({Job(point, 0).name for point in points})
    assert ablation.reserved <= Config.model_fields.keys()
    for variant in ablation.variants:
        places = [point.place for point in points if point.variant == variant]
        assert places == sorted(places)


@pytest.mark.parametrize("name", list(published_ablations()))
def test_the_grid_is_the_papers(name: str) -> None:
    points = {(p.variant, p.published_as) for p in find_ablation(name).points(None, None, epochs=100)}
    paper = {(series.variant, value) for series in published_ablations()[name].series for value in series.values}
    assert paper == points


def test_the_published_values_are_those_of_the_paper() -> None:
    numbers = {
        name: [list(series.values.values()) for series in table.series] for name, table in published_ablations().items()
    }
    assert numbers["batch-size"] == [[46.56, 51.32, 54.23, 56.63, 57.0, 58.5]]
    assert numbers["prototypes"] == [[48.81, 49.98, 50.69, 50.81, 51.2, 51.31]]
    assert numbers["block-size"][0][-2:] == [49.67, 0.11]
    assert numbers["block-size"][1] == [48.95, 49.28, 48.81, 47.37, 46.16, 44.68, 44.29, 44.39, 47.25, 0.11]
    assert numbers["momentum"] == [[51.0, 50.2, 50.3, 51.1, 50.1, 51.3]]
    assert numbers["partition"] == [[48.68, 53.98, 55.93, 56.38], [45.15, 49.89, 52.81, 53.32]]
    assert numbers["epochs"] == [[51.98, 58.524, 61.534, 61.94], [53.874, 59.918, 61.956, 61.938]]


def test_lengths_are_fractions_of_a_full_run() -> None:
    points = find_ablation("epochs").points(None, None, epochs=50)
    assert [(p.settings["epochs"], p.published_as) for p in points] == [(12, "25"), (25, "50"), (38, "75"), (50, "100")]
    (given,) = find_ablation("epochs").points("13", None, epochs=50)
    assert (given.settings["epochs"], given.published_as) == (13, "25")  # a quarter, as nearly as it can be
    assert [p.settings["epochs"] for p in find_ablation("epochs").points("5%,10%,100%", None, epochs=3)] == [1, 3]


def test_values_as_people_write_them() -> None:
    momentum = find_ablation("momentum")
    for written in ("0.99->1", "0.99→1", "0.99-1.0", [(0.99, 1.0)], [[0.99, 1]]):
        (point,) = momentum.points(written, None, epochs=1)
        assert point.settings == {"teacher_momentum": [0.99, 1.0]}
        assert Job(point, 3).name == "0.99-1-seed3"
    assert [
        p.settings["block_size"] for p in find_ablation("block-size").points([8, 32], "with teacher", epochs=1)
    ] == [
        8,
        32,
    ]
    assert [p.settings["local_views"] for p in find_ablation("views").points("2, 2+6", None, epochs=1)] == [0, 6]
    assert [p.settings["entropy_weight"] for p in find_ablation("entropy").points(2.5, None, epochs=1)] == [2.5]


@pytest.mark.parametrize(
    ("name", "values", "remedy"),
    [
        ("batch-size", "many", "whole numbers, such as 128,256"),
        ("batch-size", "12.5", "whole numbers"),
        ("batch-size", "-8", "whole numbers"),
        ("momentum", "high", "'0.99->1'"),
        ("views", "3+1", "always two global views"),
        ("epochs", "half", "50%,100%"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, values: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as mistake:
        find_ablation(name).points(values, None, epochs=10)
    assert f"received '{values}'" in str(mistake.value)
    assert remedy in str(mistake.value)


def test_misspelt_names() -> None:
    with pytest.raises(
        ConfigError, match=r"no ablation 'blocksize'\. Did you mean 'block-size'\? Ablations: batch-size"
    ):
        find_ablation("blocksize")
    with pytest.raises(ConfigError, match=r"no variant 'teacher'.* Variants: with-teacher, without-teacher"):
        find_ablation("block-size").points(None, "teacher", epochs=1)
    with pytest.raises(ConfigError, match="batch-size has no variants"):
        find_ablation("batch-size").points(None, "with-teacher", epochs=1)


def test_only_the_ablation_sets_what_it_varies() -> None:
    assert find_ablation("block-size").reserved == {"block_size"}  # teacher_momentum is that of the first variant
    assert find_ablation("partition").reserved == {"partition"}  # epochs are the length of a full run
    assert find_ablation("epochs").reserved == set()


def test_local_views_have_the_papers_proportion_unless_a_size_is_given() -> None:
    adapt = find_ablation("views").adapt
    assert adapt({}, 224) == {"local_size": 96}
    assert adapt({}, 32) == {"local_size": 16}
    assert adapt({"local_size": 40}, 224) == {}


def test_all_points_come_before_the_second_seed() -> None:
    jobs = all_jobs(find_ablation("views").points("2,2+2", None, epochs=1), [4, 7])
    assert [job.name for job in jobs] == ["2-seed4", "2+2-seed4", "2-seed7", "2+2-seed7"]
