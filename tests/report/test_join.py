"""Results of several models in one table."""

from dataclasses import replace

from carp.evaluation.data_names import AVERAGE, name_of_data
from carp.evaluation.result import Result
from carp.images.sources.paper.paper_datasets import BY_NAME
from carp.report.tables.columns import Column, column_of, headings, headline_columns, in_order
from carp.report.tables.join import Row, Source, Table, Value, join, shown, with_averages
from carp.report.tables.paper import layouts

K20 = Column("knn", "cifar10", "top1_k20")


def result(value: float, *, name: str = "a", weights: str = "11111111", data: str = "cifar10", **more: float) -> Result:
    model = {"name": name, "hash": weights, "branch": "teacher"}
    return Result("knn", {"top1_k20": value, **more}, data={"name": data}, model=model)


def at(place: str, content: Result, when: str = "") -> Source:
    return Source(content, place, when)


def test_names_of_values_and_data_may_be_spelt_in_several_ways() -> None:
    for protocol, data, name in (
        ("knn", {"name": "cifar10"}, "top1_k20"),
        ("knn", {"name": "CIFAR-10"}, "knn_top1_k20"),
        ("knn", {"train": "dataset:cifar10:train"}, "top1@20"),
        ("knn", {"train": "dataset:CIFAR10"}, "top1_k20"),
    ):
        assert column_of(protocol, name_of_data(data), name) == K20
    assert column_of("few_shot", "voc07", "map@4") == Column("few-shot", "voc07", "map_n4")
    assert column_of("few-shot", "voc07", "map@full") == Column("few-shot", "voc07", "map_full")
    assert name_of_data({"train": "/photos/my birds/train/"}) == "my birds"
    assert name_of_data({"train": "train"}) == "train"
    assert name_of_data({}) == "data"


def test_a_folder_never_has_the_name_of_a_published_data_set() -> None:
    published = {column.data for table in layouts().values() for column in table.columns} | set(BY_NAME)
    names = ["flowers", "Oxford Flowers-102", "CIFAR10", "roxford5k", "Copydays", "voc0712", "average", "pets"]
    for name in names:
        for place in (name, f"/data/{name}", f"/data/{name}/train", f"D:\\{name}\\test"):
            found = name_of_data({"train": place, "test": "leave one out", "fingerprints": ["1"]})  # old files, too
            assert found == f"{name} (own data)"
            assert found not in published
            shown = headings([column_of("knn", found, "top1@20")])
            assert "Oxford Flowers-102" not in (*shown.groups, shown.title) or name == "Oxford Flowers-102"
    assert name_of_data({"train": "torchvision:Flowers102:train"}) == "torchvision:Flowers102:train"


def test_shares_become_percent_and_deviations_stand_beside_them() -> None:
    rows, cells, notes = join([at("x", replace(result(0.5, top5_k20=0.25), spread={"top1_k20": 0.013}))])
    assert rows == [Row("a (teacher)", key="11111111")]
    assert cells[rows[0], K20] == Value(50.0, 1.3)
    assert shown(cells[rows[0], K20], K20) == "50.0 ± 1.3"
    assert len(cells) == 2
    assert not notes


def test_counts_stay_counts_and_are_not_compared() -> None:
    column = Column("kmeans", "cifar10", "empty_clusters")
    models = [{"name": name, "hash": name} for name in "ab"]
    values = {"empty_clusters": 3.0}
    rows, cells, _ = join(at("x", Result("kmeans", values, data={"name": "cifar10"}, model=m)) for m in models)
    table = Table((column,), tuple(rows), cells)
    assert shown(cells[rows[0], column], column) == "3"
    assert not table.best


def test_the_newest_of_two_results_wins_whatever_their_order() -> None:
    old, new = at("old.json", result(0.5), "2026-01-01"), at("new.json", result(0.6), "2026-01-02")
    for sources in ([old, new], [new, old]):
        rows, cells, notes = join(sources)
        assert cells == {(rows[0], K20): Value(60.0)}
        assert len(notes) == 1
        assert "50.0 in old.json and 60.0 in new.json; the latter is newer" in notes[0]
    assert not join([old, at("copy.json", result(0.5), "2026-01-03")])[2], "the same number twice is no news"


def test_rows_stand_in_the_order_in_which_they_are_given() -> None:
    first, second = at("x", result(0.5, name="b", weights="2"), "2026-02"), at("y", result(0.6), "2026-01")
    assert [row.name for row in join([first, second])[0]] == ["b (teacher)", "a (teacher)"]


def test_different_weights_of_one_name_are_told_apart() -> None:
    rows, cells, notes = join([at("x", result(0.5)), at("y", result(0.6, weights="22222222"))])
    assert [row.name for row in rows] == ["a (teacher) [11111111]", "a (teacher) [22222222]"]
    assert {value.mean for value in cells.values()} == {50.0, 60.0}
    assert not notes


def test_results_on_other_images_are_told() -> None:
    def on(test: str, name: str) -> Result:
        data = {"train": "birds/train", "test": test, "fingerprints": ["1", test]}
        return Result("knn", {"top1@20": 0.5}, data=data, model={"name": name, "hash": name, "branch": "teacher"})

    same = [at("x", on("birds/test", "a")), at("y", on("birds/test", "b"))]
    assert not join(same)[2]
    (note,) = join([*same, at("z", on("birds/few", "c"))])[2]
    assert "knn on birds: these results are not comparable" in note


def test_many_results_that_do_not_compare_are_a_few_notes() -> None:
    def on(data: str, protocol: str, test: str, name: str) -> Source:
        described = {"train": data, "test": test, "fingerprints": [test]}
        return at(name, Result(protocol, {"top1": 0.5}, data=described, model={"name": name, "hash": name}))

    places = [(f"set{i}", protocol) for i in range(5) for protocol in ("knn", "linear")]
    (note,) = join([on(*place, test, name) for place in places for test, name in (("x", "a"), ("y", "b"))])[2]
    assert note.startswith("knn, linear on set0; knn, linear on set1; knn, linear on set2; and 2 more datasets: these")


def test_results_of_one_pair_of_files_are_one_note() -> None:
    values = {f"top1_k{k}": 0.5 for k in (10, 100, 200)}
    pairs = [
        (
            at(f"old{i}", result(0.5, name=f"m{i}", **values), "1"),
            at(f"new{i}", result(0.6, name=f"m{i}", **dict.fromkeys(values, 0.6)), "2"),
        )
        for i in range(5)
    ]
    notes = join([source for pair in pairs for source in pair])[2]
    assert len(notes) == 4
    assert notes[0] == (
        "two results for knn cifar10 top1_k20 of m0 (teacher) and 3 more of its values: 50.0 in old0 and 60.0 in new0; "
        "the latter is newer and is shown."
    )
    assert notes[-1] == "2 more pairs of files have two results for one value; the newest is shown."


def test_marks_go_by_the_number_that_is_shown() -> None:
    rows = tuple(Row(name) for name in "abcde")
    numbers = (90.04, 90.01, 80.0, 70.0, 99.0)
    cells = {(row, K20): Value(n) for row, n in zip(rows, numbers, strict=True)}
    reference = Row("e", compared=False)
    cells[reference, K20] = cells.pop((rows[4], K20))
    table = Table((K20,), (*rows[:4], reference), cells)
    assert {row.name for row, _ in table.best} == {"a", "b"}
    assert {row.name for row, _ in table.second} == {"c"}
    alone = Table((K20,), rows[:1], cells)
    assert not alone.best | alone.second


def test_an_average_needs_all_of_its_data_sets() -> None:
    row, wanted = Row("a"), Column("knn", AVERAGE, "top1_k20")
    cells = {(row, Column("knn", name, "top1_k20")): Value(v) for name, v in (("pets", 80.0), ("cars", 40.0))}
    assert with_averages(cells, [row], [wanted], ["pets", "cars"])[row, wanted] == Value(60.0)
    assert with_averages(cells, [row], [wanted], ["pets", "cars", "gtsrb"]) == cells


def test_the_papers_measures_come_first_and_others_only_where_there_are_none() -> None:
    names = ("top1_k10", "top1_k20", "top5_k20")
    both = [Column("knn", "pets", name) for name in names]
    assert headline_columns(both) == [both[1]]
    assert headline_columns([both[0]]) == [both[0]]
    unknown = [Column("probe", "pets", "score")]
    assert headline_columns(unknown + both) == [*unknown, both[1]]


def test_mean_per_class_is_shown_where_the_literature_uses_it() -> None:
    names = ("top1@20", "mean_per_class@20", "top5@20", "mean_per_class@10")
    columns = in_order({column_of("knn", data, name) for data in ("pets", "food101", "mine") for name in names})
    shown = [str(column) for column in headline_columns(columns)]
    assert shown == ["knn pets top1_k20", "knn pets mean_per_class_k20", "knn food101 top1_k20", "knn mine top1_k20"]
    assert column_of("knn", "pets", "mean_per_class@20").words == ("mean per class", "k = 20")
    for protocol, name in (("few-shot", "mean_per_class@full"), ("linear", "mean_per_class")):
        assert column_of(protocol, "aircraft", name).is_headline
        assert not column_of(protocol, "inat2018", name).is_headline


def test_columns_have_an_order_that_does_not_depend_on_the_files() -> None:
    names = ["top1_k10", "top1_k20", "top1_k100", "top5_k10", "top5_k100"]
    assert [c.metric for c in in_order({Column("knn", "pets", name) for name in names})] == names
    places = [("knn", "gtsrb"), ("knn", "my birds"), ("linear", "pets")]
    assert [(c.protocol, c.data) for c in in_order({Column(*place, "top1") for place in places})] == places


def test_what_all_columns_share_goes_into_the_title() -> None:
    above = headings([Column("knn", name, "top1_k20") for name in ("pets", "my birds")])
    assert (above.title, above.groups) == ("k-NN, top-1, k = 20", ("Oxford-IIIT Pet", "my birds"))
    assert above.names == ("", "")
    above = headings([Column("linear", "imagenet", "top1"), Column("knn", "imagenet", "top1_k20")])
    assert (above.title, above.groups, above.names) == ("ImageNet-1M, top-1", ("Linear", "k-NN"), ("", "k = 20"))
    above = headings([Column("kmeans", "gtsrb", name) for name in ("nmi", "ari")])
    assert (above.title, above.names) == ("k-means, GTSRB", ("NMI", "ARI"))
