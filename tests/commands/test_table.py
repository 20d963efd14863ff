"""`carp table` and `carp datasets` through the command line."""

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

import carp
from carp.evaluation.result import Result
from tests.commands.conftest import Cli
from tests.commands.test_cli import assert_one_line
from tests.images.test_paper_datasets import write_dtd

PETS = "torchvision:OxfordIIITPet:trainval"


def write(path: Path, name: str, value: float, *, data: str = PETS, protocol: str = "knn", **values: float) -> Path:
    """A result file of a teacher."""
    model = {"name": name, "hash": f"{name}-0000000000", "branch": "teacher"}
    Result(protocol, {"top1_k20": value, **values}, data={"name": data}, model=model).write(path)
    return path


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    """k-NN of two models on Pets."""
    return [write(tmp_path / "a.json", "a", 0.9), write(tmp_path / "b.json", "b", 0.75, top1_k10=0.7)]


# Tables


def test_two_models_on_the_screen(cli: Cli, two: list[Path]) -> None:
    code, out, err = cli("table", *two)
    assert (code, err) == (0, "")
    assert "k-NN, top-1, k = 20, %" in out
    assert re.search(r"a \(teacher\) +90\.0", out)
    assert re.search(r"b \(teacher\) +75\.0", out)
    assert "70.0" not in out


def test_what_a_killed_evaluation_left_is_not_a_result(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    (tmp_path / ".unfinished-c.json").write_text("")
    code, out, err = cli("table", tmp_path)
    assert (code, err) == (0, "")
    assert out == cli("table", *two)[1]


def test_markdown_marks_best_and_second(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    third = write(tmp_path / "c.json", "c", 0.5)
    code, out, _ = cli("table", *two, third, "--format", "md")
    assert code == 0
    assert out.splitlines() == [
        "**k-NN, top-1, k = 20, %**",
        "",
        "| model | Oxford-IIIT Pet |",
        "| --- | ---: |",
        "| a (teacher) | **90.0** |",
        "| b (teacher) | <u>75.0</u> |",
        "| c (teacher) | 50.0 |",
    ]


def test_all_values_in_a_csv_that_spreadsheets_read(cli: Cli, two: list[Path]) -> None:
    code, out, _ = cli("table", *two, "--all", "--format", "csv")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [
        ["model", "knn pets top1_k10", "knn pets top1_k20"],
        ["a (teacher)", "", "90"],
        ["b (teacher)", "70", "75"],
    ]


def test_deviations(cli: Cli, tmp_path: Path) -> None:
    model = {"name": "a_b", "hash": "1"}
    values, spread = {"map_n1": 0.471, "map_full": 0.882}, {"map_n1": 0.032}
    Result("few-shot", values, spread=spread, data={"name": "voc07"}, model=model).write(tmp_path / "a.json")
    assert "| a_b | 47.1 ± 3.2 | 88.2 |" in cli("table", tmp_path / "a.json", "--format", "md")[1]
    head, row = csv.reader(io.StringIO(cli("table", tmp_path / "a.json", "--format", "csv")[1]))
    assert dict(zip(head, row, strict=True))["few-shot voc07 map_n1 deviation"] == "3.2"
    assert r"a\_b & 47.1 $\pm$ 3.2 & 88.2 \\" in cli("table", tmp_path / "a.json", "--format", "latex")[1]


def test_beside_the_paper(cli: Cli, two: list[Path]) -> None:
    code, out, _ = cli("table", *two, "--with-paper", "--format", "md")
    assert code == 0
    assert "| CARP | 400 | <u>86.8</u> |" in out
    assert "| MoCo-v3 | 1000 | 86.4 |" in out
    assert "| a (teacher) |  | **90.0** |" in out
    assert "VICReg" not in out, "it has no number for these columns"
    assert out.index("CARP") < out.index("a (teacher)")


def test_the_layout_of_the_paper_with_averages(cli: Cli, tmp_path: Path) -> None:
    names = ["pets", "flowers", "aircraft", "cars", "country211", "food101", "stl10", "gtsrb"]
    for i, name in enumerate(names):
        write(tmp_path / f"{name}.json", "a", 0.5 + 0.01 * i, data=name)
    code, out, _ = cli("table", tmp_path, "--layout", "knn", "--with-paper", "--format", "csv")
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 12
    assert rows[-1]["knn gtsrb top1_k20"] == "57"
    assert float(rows[-1]["knn average top1_k20"]) == pytest.approx(53.5)
    assert rows[-1]["knn average top1_k10"] == ""


def test_a_published_table_alone(cli: Cli) -> None:
    code, out, err = cli("table", "--layout", "kmeans", "--with-paper", "--format", "latex")
    assert code == 0
    assert r"\multicolumn{3}{c}{CIFAR-100}" in out
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}" in out
    assert r"CARP & \textbf{70.3} & \textbf{48.0} & \textbf{23.9}" in out
    assert out.count(r"\\") == 2 + 8
    assert "1% of the training images according to the text" in err


def test_files_of_every_format(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, begins in (("t.md", b"**"), ("t.csv", b"model"), ("t.tex", b"%"), ("new/t.png", b"\x89PNG")):
        code, out, _ = cli("table", *two, "--with-paper", "--out", tmp_path / name)
        assert (code, out) == (0, f"table: {tmp_path / name}\n")
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_a_wide_table_is_a_picture_of_several_below_each_other(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for data in ("birds", "signs", "photographs"):
        values = {f"{name}_k{k}": 0.5 for name in ("top1", "top5", "mean_per_class") for k in (10, 20, 100, 200)}
        write(tmp_path / f"{data}.json", "a-model-with-a-long-name", 0.5, data=data, **values)
    assert cli("table", tmp_path, "--all", "--out", tmp_path / "t.png")[0] == 0
    with Image.open(tmp_path / "t.png") as picture:
        assert picture.width <= 1900
        assert picture.height <= 2 * picture.width
    assert cli("table", tmp_path / "birds.json", "--out", tmp_path / "one.png")[0] == 0
    with Image.open(tmp_path / "one.png") as picture:
        assert picture.height < 300, "a narrow table stays one"


def test_an_own_folder_is_not_put_beside_published_numbers(cli: Cli, tmp_path: Path) -> None:
    for name, train in (("own", "/data/flowers/train"), ("checked", "dataset:flowers:train")):
        model = {"name": name, "hash": name, "branch": "teacher"}
        data = {"train": train, "test": "leave one out", "fingerprints": [name]}
        Result("knn", {"top1@20": 0.9}, data=data, model=model).write(tmp_path / f"{name}.json")
    own, checked = tmp_path / "own.json", tmp_path / "checked.json"
    assert "Oxford Flowers-102" not in cli("table", own, "--format", "md")[1]
    assert_one_line(cli("table", own, "--with-paper"), "knn on flowers (own data)", "--with-paper")
    assert_one_line(cli("table", own, "--layout", "knn"), "knn on flowers (own data)")
    out = cli("table", checked, "--with-paper", "--format", "md")[1]
    assert "Oxford Flowers-102" in out
    assert "80.0" in out
    out = cli("table", own, checked, "--with-paper", "--format", "csv")[1]
    rows = {row["model"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["own (teacher)"]["knn flowers top1_k20"] == ""
    assert rows["own (teacher)"]["knn flowers (own data) top1_k20"] == "90"


def test_names_with_the_signs_of_every_format(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = write(tmp_path / "a.json", "a|b [red]$x_1$ 5%", 0.9, data="[bold] $b$|c")
    other = write(tmp_path / "b.json", "c", 0.8, data="[bold] $b$|c")
    assert "a|b [red]$x_1$ 5% (teacher)" in cli("table", path, other)[1]
    markdown = cli("table", path, other, "--format", "md")[1].splitlines()
    assert markdown[2] == "| model | [bold] $b$\\|c |"
    assert markdown[4].startswith("| a\\|b [red]$x_1$ 5% (teacher) |")
    assert r"a|b [red]\$x\_1\$ 5\% (teacher) & \textbf{90.0}" in cli("table", path, other, "--format", "latex")[1]
    assert cli("table", path, other, "--out", tmp_path / "t.png")[0] == 0


def test_the_newest_of_two_results_is_shown_with_a_note(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    newer = write(tmp_path / "0.json", "a", 0.95)
    for order in ([newer, *two], [*two, newer]):
        code, out, err = cli("table", *order, "--format", "md")
        assert code == 0
        assert "| a (teacher) | **95.0** |" in out
        assert err.count("\n") == 1
        assert f"90.0 in {two[0]} and 95.0 in {newer}; the latter is newer" in err


def test_files_without_a_date_go_by_their_time(cli: Cli, tmp_path: Path) -> None:
    for name, value, time in (("new", 0.6, 2_000_000_000), ("old", 0.5, 1_000_000_000)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"protocol": "knn", "values": {"top1@5": value}}))
        os.utime(path, (time, time))
    assert "60.0" in cli("table", tmp_path, "--format", "md")[1]


def test_what_carp_eval_wrote(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "birds"
    shutil.copytree(run, copy)
    assert cli("eval", "knn", copy, "--data", labelled, "k=5")[0] == 0
    found = [json.loads(path.read_text()) for path in (copy / "results").glob("knn-*.json")]
    values = {result["model"]["branch"]: result["values"]["top1@5"] for result in found}
    assert values.keys() == {"student", "teacher"}
    code, out, err = cli("table", copy, "--format", "md")
    assert (code, err) == (0, "")
    for name, value in values.items():
        assert re.search(rf"\| birds \({name}\) \| 2 \| .*{100 * value:.1f}\W", out)


# Mistakes


def test_no_results(cli: Cli) -> None:
    assert_one_line(cli("table"), "no results were given", "--layout NAME --with-paper")


def test_a_file_that_does_not_exist(cli: Cli, tmp_path: Path) -> None:
    assert_one_line(cli("table", tmp_path / "no.json"), str(tmp_path / "no.json"), "run folders")


def test_a_folder_without_results(cli: Cli, tmp_path: Path) -> None:
    assert_one_line(cli("table", tmp_path), str(tmp_path), "carp eval")


def test_a_file_that_is_no_result(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"epochs": 3}')
    assert_one_line(cli("table", *two, tmp_path / "c.json"), str(tmp_path / "c.json"), "not a result file")


def test_a_file_without_values(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"protocol": "knn", "values": {}}')
    assert_one_line(cli("table", tmp_path / "c.json"), "no values", "carp eval")


def test_formats_and_files(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    assert_one_line(cli("table", *two, "--format", "cvs"), "'cvs'", "Did you mean 'csv'?")
    assert_one_line(cli("table", *two, "--format", "png"), "--out table.png")
    assert_one_line(cli("table", *two, "--out", tmp_path / "t.xls"), "t.xls", ".csv", "--format")
    assert_one_line(cli("table", *two, "--out", two[0] / "t.md"), "cannot write", str(two[0]))
    for results in (two, []):
        assert_one_line(cli("table", *results, "--layout", "k-means"), "'k-means'", "Did you mean 'kmeans'?")


def test_one_place_need_not_be_a_list(two: list[Path]) -> None:
    for place in (two[0], str(two[0])):
        assert carp.table(place) == carp.table([place])


def test_nothing_in_common_with_the_paper(cli: Cli, tmp_path: Path) -> None:
    own = write(tmp_path / "a.json", "a", 0.9, data="photos/birds")
    assert_one_line(cli("table", own, "--with-paper"), "knn on birds", "knn on pets", "--with-paper")
    assert_one_line(cli("table", own, "--layout", "kmeans"), "kmeans on gtsrb", "they have knn on birds")


def test_nothing_in_common_between_models(cli: Cli, two: list[Path], tmp_path: Path) -> None:
    other = write(tmp_path / "c.json", "c", 0.9, data="cars")
    code, out, err = cli("table", two[0], other, "--format", "md")
    assert code == 0
    assert "| a (teacher) | 90.0 | – |" in out
    assert "no two models have a result in the same column" in err


# Datasets


def test_the_list_of_data_sets(cli: Cli) -> None:
    code, out, err = cli("datasets")
    assert (code, err) == (0, "")
    assert re.search(r"pets +Oxford-IIIT Pet +37 +3,680 \+ 3,669 +mean per-class", out)
    assert "1% (12,811 images), 10% (128,116 images)" in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_what_is_below_a_root(cli: Cli, tmp_path: Path) -> None:
    write_dtd(tmp_path)
    (tmp_path / "gtsrb" / "GTSRB").mkdir(parents=True)
    code, out, err = cli("datasets", "--root", tmp_path)
    assert (code, err) == (0, "")
    present, rest = out.split("\npresent:\n")[1].split("\nbroken:\n")
    broken, absent = rest.split("\nto get:\n")
    assert present.strip() == f"dtd: dataset:dtd:train   dataset:dtd:test   root={tmp_path}"
    assert broken.strip().startswith(f"gtsrb: dataset:gtsrb:test is not in the folder {tmp_path}")
    assert f"D('{tmp_path}', download=True, **split) for split in [{{'split': 'train'}}, {{'split': 'test'}}]" in broken
    assert f"{tmp_path}/imagenet" in absent
    assert "ROOT" not in absent
    for line in re.findall(r'python -c "(.*?)"', absent):
        compile(line, "advice", "exec")


def test_data_sets_as_json(cli: Cli, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(cli("datasets", "--json", "--root", tmp_path)[1])}
    assert len(rows) == 17
    assert rows["cifar10"]["train"] == {
        "word": "train",
        "source": "dataset:cifar10:train",
        "arguments": {"train": True},
        "images": 50_000,
    }
    assert rows["voc07"]["test"]["arguments"] == {"year": "2007", "image_set": "test"}
    lists = rows["imagenet"]["lists"]
    assert lists["1%"] == {"source": "dataset:imagenet:1%", "file": "1percent.txt", "images": 12_811}
    assert lists["10%"]["images"] == 128_116
    assert rows["imagenet"]["found"]["state"] == "absent"
    assert "found" not in json.loads(cli("datasets", "--json")[1])[0]


def test_a_root_that_is_no_folder(cli: Cli, tmp_path: Path) -> None:
    assert_one_line(cli("datasets", "--root", tmp_path / "no"), str(tmp_path / "no"), "not a folder")


def test_result_files_of_the_version_before_stand_in_the_same_column(cli: Cli, tmp_path: Path) -> None:
    """`carp eval copies` used to write the protocol as `copy-detection`."""
    before = {
        "schema": 1,
        "protocol": "copy-detection",
        "values": {"map": 0.5, "map_strong": 0.25, "micro_ap": 0.125},
        "settings": {"square": 320, "originals": 157, "copies": 229, "whitening": "off", "depth": 20, "side": 320},
        "data": {"name": "copydays", "train": "copydays", "fingerprints": ["1"]},
        "model": {"name": "before", "hash": "1" * 64, "branch": "teacher"},
    }
    now = before | {"protocol": "copies", "model": {"name": "now", "hash": "2" * 64, "branch": "teacher"}}
    for name, content in (("copy-detection-copydays-teacher-1.json", before), ("copies-copydays-teacher-2.json", now)):
        (tmp_path / name).write_text(json.dumps(content))
    code, out, err = cli("table", tmp_path, "--format", "csv", "--layout", "copies", "--with-paper")
    assert code == 0, err
    rows = {line.split(",")[0]: line for line in out.splitlines()}
    assert rows["before (teacher)"].split(",")[-1] == rows["now (teacher)"].split(",")[-1] == "25"
    assert "CARP (mc),400,84" in out, "the paper's row for CARP"
    code, out, err = cli("table", tmp_path)
    assert code == 0, err
    assert out.count("Copy detection") == 1
