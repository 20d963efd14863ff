"""Revisited Oxford, Paris and Copydays by name: from the layouts of the published archives to the paper's tables."""

import csv
import io
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import carp
from carp.errors import DataError
from carp.images.open_source import open_source
from carp.images.sources.paper.dataset_source import counterpart, look
from carp.images.sources.paper.paper_datasets import BY_NAME, DATASETS
from tests.commands.conftest import Cli, assert_one_line

SIZES = {"roxford5k": (3, 8), "rparis6k": (3, 9), "copydays": (5, 7)}  # queries or copies, and images


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table as if the datasets were as small as those below."""
    rows = list(DATASETS)
    for name, (queries, images) in SIZES.items():
        row = BY_NAME[name]
        new = replace(row, train=replace(row.train, images=images), test=replace(row.test, images=queries))
        rows[rows.index(row)] = new
        monkeypatch.setitem(BY_NAME, name, new)
    monkeypatch.setattr("carp.images.sources.paper.paper_datasets.DATASETS", tuple(rows))


def save(path: Path, seed: int, *, quality: int = 95) -> None:
    """A photograph-like image of 60 × 44 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(coarse).resize((60, 44), Image.Resampling.BICUBIC).save(path, quality=quality)


def truth_of(name: str) -> dict[str, Any]:
    """A ground truth with arrays, as the published pickles have them."""
    queries, images = SIZES[name]
    gnd = []
    for q in range(queries):
        easy, hard = [q, q + queries], [(q + 1) % queries + queries]
        junk = [image for image in (images - 1, 0) if image not in (*easy, *hard)]
        judged = {"easy": np.array(easy), "hard": np.array(hard), "junk": np.array(junk)}
        gnd.append({"bbx": [4.5, 2.0, 40.5, 30.0], **judged})
    return {"gnd": gnd, "imlist": [f"d_{i}" for i in range(images)], "qimlist": [f"q_{i}" for i in range(queries)]}


def write_landmarks(root: Path, name: str) -> Path:
    """ROOT/NAME/jpg and ROOT/NAME/gnd_NAME.pkl, as the datasets' authors lay them out."""
    truth = truth_of(name)
    for i, image in enumerate([*truth["qimlist"], *truth["imlist"]]):
        save(root / name / "jpg" / f"{image}.jpg", 100 * len(name) + i)
    (root / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(truth, protocol=2))
    return root


def write_copydays(root: Path) -> Path:
    """`original`, `strong` and `jpegqual/3`, as published: copies share four digits with their original."""
    copies, originals = SIZES["copydays"]
    for i in range(originals):
        save(root / "copydays" / "original" / f"2{i:03d}00.jpg", i)
        save(root / "copydays" / "jpegqual" / "3" / f"2{i:03d}00.jpg", i, quality=3)
    for i in range(copies):
        save(root / "copydays" / "strong" / f"2{i:03d}01.jpg", i, quality=20)
    return root


def test_both_landmark_datasets_stand_in_the_papers_table(cli: Cli, run: Path, tmp_path: Path) -> None:
    root = write_landmarks(write_landmarks(tmp_path, "roxford5k"), "rparis6k")
    found = {}
    for name in ("roxford5k", "rparis6k"):
        words = ["eval", "retrieval", run, "--data", f"dataset:{name}", "--root", root, "--branch", "teacher"]
        code, out, err = cli(*words, "--out", tmp_path / "out", "preset=authors")
        assert code == 0, err
        assert out.startswith(f"{name}, %")
        (path,) = (tmp_path / "out" / "results").glob(f"retrieval-{name}-teacher-*.json")
        result = json.loads(path.read_text())
        assert result["data"]["name"] == name
        assert result["settings"] | {"preset": "authors", "max_side": 512, "boxes": False} == result["settings"]
        assert result["settings"]["truth"] == f"gnd_{name}.pkl"
        found[name] = result["values"]
    assert found["roxford5k"]["map_medium"] != found["rparis6k"]["map_medium"]
    for words in (["--layout", "retrieval", "--with-paper"], ["--with-paper"], []):
        code, out, err = cli("table", tmp_path / "out", "--format", "csv", *words)
        assert code == 0, err
        assert "two results" not in err
        rows = {row["model"]: row for row in csv.DictReader(io.StringIO(out))}
        for name, values in found.items():
            for level in ("medium", "hard"):
                shown = rows["run (teacher)"][f"retrieval {name} map_{level}"]
                assert float(shown) == pytest.approx(100 * values[f"map_{level}"], abs=1e-6)
        assert any(line.startswith("CARP,200,38.8,15.5,58.8,30.4") for line in out.splitlines()) == bool(words)


def test_the_documented_command_has_the_name_of_the_dataset(cli: Cli, run: Path, tmp_path: Path) -> None:
    """A folder `jpg` is called by the folder above it; the sizes of its ground truth tell whether it is published."""
    for name, other in (("roxford5k", "rparis6k"), ("rparis6k", "roxford5k")):
        write_landmarks(tmp_path / "data", name)
        folder = tmp_path / "data" / name
        common = ["eval", "retrieval", run, "--branch", "teacher", "--data", folder / "jpg"]
        code, _, err = cli(*common, "--truth", folder / f"gnd_{name}.pkl", "--out", tmp_path / "whole")
        assert code == 0, err
        truth = truth_of(name)
        part = {"imlist": truth["imlist"], "qimlist": truth["qimlist"][:2]}
        part["gnd"] = [{k: np.asarray(v).tolist() for k, v in entry.items()} for entry in truth["gnd"][:2]]
        (tmp_path / f"{other}.json").write_text(json.dumps(part))
        code, _, err = cli(*common, "--truth", tmp_path / f"{other}.json", "--out", tmp_path / "part")
        assert code == 0, err
    head = cli("table", tmp_path / "whole", "--format", "csv")[1].splitlines()[0]
    assert head.count("roxford5k") == head.count("rparis6k") == 2
    code, out, err = cli("table", tmp_path / "part", "--format", "csv")
    assert (code, "two results" in err) == (0, False)
    for name in ("roxford5k", "rparis6k"):
        assert f"retrieval {name} (own data) map_medium" in out.splitlines()[0], "not what is published"
    assert_one_line(cli("table", tmp_path / "part", "--layout", "retrieval"), "roxford5k (own data)")


def test_two_folders_of_one_name_are_two_columns(cli: Cli, run: Path, tmp_path: Path) -> None:
    for place, seed in (("oxford/photos", 0), ("paris/photos", 50)):
        for i in range(8):
            save(tmp_path / place / f"class-{i % 2}" / f"{i}.jpg", seed + i)
        words = [
            "eval",
            "knn",
            run,
            "--branch",
            "teacher",
            "--data",
            tmp_path / place,
            "--out",
            tmp_path / "out",
            "k=3",
        ]
        assert cli(*words)[0] == 0
    code, out, err = cli("table", tmp_path / "out", "--format", "csv")
    assert (code, err) == (0, "")
    head, row = csv.reader(io.StringIO(out))
    assert {"knn oxford/photos top1_k3", "knn paris/photos top1_k3"} <= set(head)
    assert "" not in row


def test_the_preset_equals_the_authors_script_by_hand(run: Path, tmp_path: Path) -> None:
    """One image after the other: thumbnail, three scales, mean, cosine, and trapezoids over the ranked list."""
    root = write_landmarks(tmp_path, "roxford5k")
    found = carp.evaluate("retrieval", run, "dataset:roxford5k", root=root, preset="authors", max_side=40, out=tmp_path)
    module = carp.load(run).module.eval()

    def features(name: str) -> torch.Tensor:
        with Image.open(root / "roxford5k" / "jpg" / f"{name}.jpg") as image:
            small = image.convert("RGB")
        small.thumbnail((40, 40), Image.Resampling.LANCZOS)
        x = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None] / 255
        x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        scaled = [x, *(F.interpolate(x, scale_factor=s, mode="bilinear", align_corners=False) for s in (0.5**0.5, 0.5))]
        with torch.no_grad():
            return F.normalize(torch.stack([module(part)[0] for part in scaled]).mean(dim=0), dim=0)

    truth = truth_of("roxford5k")
    database = torch.stack([features(name) for name in truth["imlist"]])
    precisions = []
    for name, entry in zip(truth["qimlist"], truth["gnd"], strict=True):
        order = torch.argsort(-(database @ features(name))).tolist()
        wanted, ignored = {*entry["easy"].tolist(), *entry["hard"].tolist()}, set(entry["junk"].tolist())
        kept = [place for place in order if place not in ignored]
        ranks = [rank for rank, place in enumerate(kept) if place in wanted]
        terms = [((1.0 if rank == 0 else n / rank) + (n + 1) / (rank + 1)) / 2 for n, rank in enumerate(ranks)]
        precisions.append(sum(terms) / len(wanted))
    assert found.values["map_medium"] == pytest.approx(np.mean(precisions), abs=1e-9)
    plain = carp.evaluate("retrieval", run, "dataset:roxford5k", root=root, out=tmp_path)
    assert plain.settings | {"boxes": True, "multi_scale": False, "max_side": None} == plain.settings


def test_copydays_by_name(cli: Cli, run: Path, tmp_path: Path) -> None:
    root = write_copydays(tmp_path)
    words = ["eval", "copies", run, "--data", "dataset:copydays", "--root", root, "--branch", "teacher", "side=40"]
    code, _, err = cli(*words, "--out", tmp_path / "out", "preset=authors")
    assert code == 0, err
    (path,) = (tmp_path / "out" / "results").glob("copies-copydays-*.json")
    result = json.loads(path.read_text())
    assert result["data"]["name"] == "copydays"
    assert (result["settings"]["originals"], result["settings"]["copies"]) == (7, 12)
    folder = carp.evaluate("copies", run, root / "copydays", side=40, out=tmp_path / "out")
    assert folder.values == result["values"]
    code, out, err = cli("table", tmp_path / "out", "--layout", "copies", "--with-paper", "--format", "csv")
    assert code == 0, err
    assert f"run (teacher),2,{100 * result['values']['map_strong']:.8g}" in out


def test_what_is_there_is_listed(cli: Cli, tmp_path: Path) -> None:
    write_copydays(write_landmarks(tmp_path, "roxford5k"))
    code, out, err = cli("datasets", "--root", tmp_path)
    assert (code, err) == (0, "")
    present, absent = out.split("\npresent:\n")[1].split("\nto get:\n")
    assert present.split() == [
        "roxford5k:", "dataset:roxford5k", f"root={tmp_path}", "copydays:", "dataset:copydays", f"root={tmp_path}",
    ]  # fmt: skip
    assert f"paris_2.tgz into {tmp_path}/rparis6k/jpg" in absent
    (tmp_path / "roxford5k" / "gnd_roxford5k.pkl").unlink()
    assert look(BY_NAME["roxford5k"], tmp_path).state == "broken"
    source = open_source("dataset:copydays", root=tmp_path)
    assert (len(source), source.labels, source.name) == (19, None, "dataset:copydays")
    assert counterpart("dataset:roxford5k") is None


Change = Callable[[Path], object]
MISSING: list[tuple[str, str, Change, list[str]]] = [
    (
        "retrieval",
        "roxford5k",
        shutil.rmtree,
        ["roxford5k/jpg", "oxbuild_images.tgz", "gnd_roxford5k.pkl"],
    ),
    (
        "retrieval",
        "rparis6k",
        lambda folder: (folder / "gnd_rparis6k.pkl").unlink(),
        ["no ground truth", "rparis6k/gnd_rparis6k.pkl", "http://cmp.felk.cvut.cz/revisitop/data"],
    ),
    ("retrieval", "roxford5k", lambda folder: (folder / "jpg" / "d_3.jpg").unlink(), ["1 of the 8 images", "'d_3'"]),
    (
        "copies",
        "copydays",
        lambda folder: shutil.rmtree(folder / "strong"),
        ["copydays/strong", "copydays_strong.tar.gz"],
    ),
    ("copies", "copydays", shutil.rmtree, ["no folder", "copydays_original.tar.gz"]),
    (
        "copies",
        "copydays",
        lambda folder: next((folder / "strong").iterdir()).unlink(),
        ["4 strong copies", "not 7 and 5", "give its folder"],
    ),
]


@pytest.mark.parametrize(("protocol", "name", "change", "words"), MISSING, ids=[f"{m[1]} {m[3][0]}" for m in MISSING])
def test_a_missing_part_is_one_line_with_how_to_get_it(
    cli: Cli, run: Path, tmp_path: Path, protocol: str, name: str, change: Change, words: list[str]
) -> None:
    (write_copydays(tmp_path) if name == "copydays" else write_landmarks(tmp_path, name))
    change(tmp_path / name)
    result = cli("eval", protocol, run, "--data", f"dataset:{name}", "--root", tmp_path, "--out", tmp_path / "out")
    assert_one_line(result, *words)


def test_other_mistakes(cli: Cli, run: Path, tmp_path: Path) -> None:
    write_copydays(write_landmarks(tmp_path, "roxford5k"))
    words = [run, "--root", tmp_path, "--out", tmp_path / "out"]
    assert_one_line(cli("eval", "knn", *words, "--data", "dataset:copydays"), "no labels", "carp eval copies")
    assert_one_line(cli("eval", "retrieval", *words, "--data", "dataset:copydays"), "carp eval copies")
    assert_one_line(cli("eval", "copies", *words, "--data", "dataset:roxford5k"), "no copies")
    assert_one_line(
        cli("eval", "retrieval", *words, "--data", "dataset:roxford5k:test"), "no splits", "dataset:roxford5k."
    )
    with pytest.raises(DataError, match="Did you mean 'roxford5k'"):
        open_source("dataset:oxford5k", root=tmp_path)
    truth = tmp_path / "roxford5k" / "gnd_roxford5k.pkl"
    fewer = truth_of("roxford5k")
    truth.write_bytes(pickle.dumps({**fewer, "gnd": fewer["gnd"][:2], "qimlist": fewer["qimlist"][:2]}))
    assert_one_line(
        cli("eval", "retrieval", *words, "--data", "dataset:roxford5k"),
        "2 queries and 8 images, not 3 and 8",
        "--truth",
    )
    truth.write_bytes(pickle.dumps(Path("x")))
    assert_one_line(cli("eval", "retrieval", *words, "--data", "dataset:roxford5k"), "gnd_roxford5k.pkl", "pathlib")
