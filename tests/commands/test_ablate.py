"""`carp ablate`: a study from the command line to its table, and every mistake on the way."""

import csv
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

import carp
from carp.cli import main
from carp.studies.job_result import read_all
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images, write_recipe

DATA = "embedded:shapes-test"  # 1,100 images


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of 512 images."""
    changes = {"epochs": 1, "batch_size": 512, "health_steps": 1, "checkpoint_steps": 1}
    return write_recipe(tmp_path_factory.mktemp("recipe") / "quick.yaml", **changes)


class Done(NamedTuple):
    """A finished study, and what the command printed."""

    folder: Path
    out: str
    err: str


@pytest.fixture(scope="module")
def done(quick: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """2 values, 2 seeds, and a value that cannot work. Do not change it."""
    folder = tmp_path_factory.mktemp("study")
    words = ["--data", DATA, "--recipe", quick, "--out", folder, "--values", "64,128,7", "--seeds", "0,1"]
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr("sys.argv", ["carp", "ablate", "prototypes", *map(str, words)])
        main()
    assert not ended.value.code, err.getvalue()
    return Done(folder / "prototypes", out.getvalue(), err.getvalue())


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of every file but the locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name)
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_two_values_and_two_seeds(done: Done) -> None:
    lines = done.err.splitlines()
    assert [line.partition(", about")[0] for line in lines if line.startswith("job ")] == [
        "job 1 of 4: prototypes K 64, seed 0",
        "job 2 of 4: prototypes K 128, seed 0",
        "job 3 of 4: prototypes K 64, seed 1",
        "job 4 of 4: prototypes K 128, seed 1",
    ]
    assert lines[0].startswith("skipped prototypes K 7: block_size must be at most num_prototypes (7)")
    assert done.err.count("skipped ") == 1
    assert done.err.count("2 steps in 1 epoch") == 4  # training's own lines
    for text in (done.out, (done.folder / "table.md").read_text()):
        assert "noise: " in text
        assert "order: 0 values in common with the paper, too few to compare." in text
        assert "skipped prototypes K 7" in text
        assert "too early to tell" in text
    assert f"plot: {done.folder / 'plot.png'}" in done.out


def test_python_gives_the_same_numbers(done: Done, quick: Path, tmp_path: Path) -> None:
    study = carp.ablate("prototypes", DATA, tmp_path, quick, values=[128], seeds=[1], quiet=True)
    ((ours,),) = (row.results for row in study.rows)
    (theirs,) = (result for result in read_all(done.folder) if (result.value, result.seed) == ("128", 1))
    assert ours.model_copy(update={"seconds": 0}) == theirs.model_copy(update={"seconds": 0})


def test_the_files_of_a_study(done: Done) -> None:
    folder = done.folder
    rows = list(csv.DictReader((folder / "table.csv").open()))
    results = {(r.value, r.seed): r for r in read_all(folder)}
    assert [(row["value"], row["seed"]) for row in rows] == [("64", "0"), ("64", "1"), ("128", "0"), ("128", "1")]
    for row in rows:
        result = results[row["value"], int(row["seed"])]
        assert float(row["student"]) == pytest.approx(100 * result.accuracies["student"])
        assert float(row["teacher"]) == pytest.approx(100 * result.accuracies["teacher"])
        assert float(row["seconds"]) > 0
        assert (row["steps"], row["resumed_at"], row["paper"]) == ("2", "0", "")
    with Image.open(folder / "plot.png") as picture:
        assert picture.width > picture.height > 300
    job = folder / "64-seed0"
    assert {path.name for path in job.iterdir()} >= {"config.yaml", "metrics.jsonl", "job.json", "run.json", "results"}
    assert not (job / "checkpoints").exists()
    assert not (job / "features").exists()
    assert carp.check_folder(folder).ok
    checked = {file.path: file.verdict for file in carp.check_folder(folder).files}
    assert checked["64-seed0/job.json"] == checked["study.json"] == "readable"


@pytest.mark.slow
def test_finished_jobs_are_never_repeated_and_more_can_be_added(
    cli: Cli, quick: Path, labelled: Path, tmp_path: Path
) -> None:
    words = ["--data", labelled, "--recipe", quick, "--out", tmp_path, "batch_size=16"]
    assert cli("ablate", "prototypes", *words, "--values", "64", "--seeds", "0")[0] == 0
    first = files_of(tmp_path / "prototypes" / "64-seed0")
    code, out, err = cli("ablate", "prototypes", *words, "--values", "64,128", "--seeds", "0,1")
    assert code == 0, err
    assert "job 2 of 4: prototypes K 128, seed 0, about " in err
    assert files_of(tmp_path / "prototypes" / "64-seed0") == first
    assert len(read_all(tmp_path / "prototypes")) == 4
    code, out, err = cli("ablate", "prototypes", *words, "--values", "128", "--seeds", "1")
    assert code == 0
    assert err == ""
    (row,) = (line for line in out.splitlines() if line.split()[:1] == ["64"])  # all that is in the folder
    assert row.split()[1] == "2"
    assert_refused(
        cli("ablate", "prototypes", *words, "--values", "64", "lr=5"), "lr: ", "-> [5.0, 5.0]", "another --out"
    )
    other = [DATA if word is labelled else word for word in words]
    assert_refused(cli("ablate", "prototypes", *other), "images: 66 -> 1100", "another --out")


def assert_refused(result: tuple[int, str, str], *words: str) -> None:
    """An error that may come after lines of progress."""
    code, out, err = result
    assert code == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("carp: error: ")
    for word in words:
        assert word in last


def test_k_nn_is_that_of_carp_eval(labelled: Path, recipe: Path, tmp_path: Path) -> None:
    test = write_images(tmp_path / "test", tiny_images(24, seed=5), classes=3)
    study = carp.ablate(
        "momentum", labelled, tmp_path, recipe, test=test, values=[0, (0.9, 1)], seeds=2, keep_weights=True, quiet=True
    )
    siamese, teacher = (row.results[0] for row in study.rows)
    assert set(siamese.accuracies) == {"student"}
    assert set(teacher.accuracies) == {"student", "teacher"}
    for result in (siamese, teacher):
        folder = study.folder / result.job.name
        for branch, accuracy in result.accuracies.items():
            again = carp.evaluate("knn", folder, labelled, test=test, branch=branch, k=20, out=tmp_path / "again")
            assert again.values["top1@20"] == accuracy
    alone = carp.train(labelled, tmp_path / "alone", recipe, quiet=True, teacher_momentum=[0.9, 1], seed=2)
    assert (alone.folder / "metrics.jsonl").read_bytes() == (
        study.folder / teacher.job.name / "metrics.jsonl"
    ).read_bytes()


def test_dry_run_lists_the_jobs_and_writes_nothing(cli: Cli, labelled: Path, recipe: Path, tmp_path: Path) -> None:
    words = ["--data", labelled, "--recipe", recipe, "--out", tmp_path / "out", "--seeds", "0,1", "--dry-run"]
    code, out, _ = cli("ablate", "partition", *words, "epochs=8", "--variants", "fixed")
    assert code == 0
    *listed, total = out.splitlines()
    assert listed == [f"to do: {epochs}-fixed-seed{seed}" for seed in (0, 1) for epochs in (2, 4, 6, 8)]
    assert total == "in total: 8 jobs to do, the time is known when the first is done"
    assert not (tmp_path / "out").exists()


def test_dry_run_of_a_started_study_says_how_long_the_rest_takes(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path
) -> None:
    words = ["ablate", "batch-size", "--values", "16", "--data", labelled, "--recipe", recipe]
    words += ["--out", tmp_path / "out"]
    assert cli(*words, "--seeds", "0", "epochs=1")[0] == 0
    code, out, _ = cli(*words, "--seeds", "0,1", "--dry-run", "epochs=1")
    assert code == 0
    assert re.search(r"^in total: 1 job to do, about [\w. ]+ one by one$", out, re.MULTILINE)


def test_values_that_cannot_work_are_skipped_not_refused(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path
) -> None:
    words = ["--data", labelled, "--recipe", recipe, "--out", tmp_path / "out", "--seeds", "0", "--dry-run"]
    code, out, err = cli("ablate", "block-size", *words, "--values", "8,12,64,128")
    assert code == 0
    assert "to do: 8-with-teacher-seed0\nto do: 64-with-teacher-seed0\nto do: 8-without-teacher-seed0" in out
    twelve, large = err.splitlines()  # one line each, not one per variant
    assert "skipped block size N_B 12: block_size must divide num_prototypes (64)" in twelve
    assert "skipped block size N_B 128: block_size must be at most num_prototypes (64)" in large
    code, out, err = cli("ablate", "batch-size", *words, "--values", "16,128")
    assert (code, out.splitlines()[0]) == (0, "to do: 16-seed0")
    assert "skipped batch size 128: batch_size is 128 but there are only 66 images" in err
    code, out, err = cli("ablate", "block-size", *words, "--values", "8", "teacher_momentum=0")
    assert out.splitlines()[0] == "to do: 8-with-teacher-seed0"
    assert "its settings are those of 8, with teacher" in err
    assert_refused(cli("ablate", "batch-size", *words, "--values", "128"), "no value of batch-size can be used", "66")


def test_a_run_that_diverges_is_a_result(labelled: Path, recipe: Path, tmp_path: Path) -> None:
    """So is a run that `on_collapse` stops; neither ends the study."""
    study = carp.ablate(
        "momentum", labelled, tmp_path, recipe, values="0.5", seeds="0", quiet=True, lr=1e6, optimiser="sgd", epochs=4
    )
    (row,) = study.rows
    assert row.results[0].verdict == "diverged"
    assert row.branch("student") is None
    assert "is not finite" in row.results[0].notes[0]
    assert "is not finite" in (study.folder / "table.md").read_text()


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["ablate", "blocksize"], ["'blocksize'", "Did you mean 'block-size'", "Ablations: batch-size"]),
    (["ablate", "batch-size", "--values", "many"], ["whole numbers", "'many'"]),
    (["ablate", "batch-size", "--values", ","], ["no values of batch-size were given", "128,256"]),
    (["ablate", "block-size", "--variants", ","], ["no variant ''", "Variants: with-teacher"]),
    (["ablate", "batch-size", "--seeds", ","], ["seeds must be whole numbers", "','"]),
    (["ablate", "batch-size", "--seeds", "9223372036854775808"], ["seed", "9223372036854775808"]),
    (["ablate", "batch-size", "--seeds", "one"], ["seeds must be whole numbers", "'one'"]),
    (["ablate", "batch-size", "--seeds", "-1"], ["seeds", "'-1'"]),
    (["ablate", "batch-size", "--variants", "fixed"], ["batch-size has no variants"]),
    (["ablate", "batch-size", "batch_size=64"], ["ablation batch-size varies batch_size", "--values"]),
    (["ablate", "partition", "partition=fixed"], ["ablation partition varies", "--values"]),
    (["ablate", "batch-size", "seed=3"], ["--seeds 3"]),
    (["ablate", "batch-size", "values=128"], ["'values' is an option", "--values 128"]),
    (["ablate", "batch-size", "--value", "128"], ["there is no option '--value'", "--values"]),
    (["ablate", "batch-size", "epoch=3"], ["no setting 'epoch'", "Did you mean 'epochs'"]),
    (["ablate", "batch-size", "--procs", "2", "--submit", "nodes=2"], ["--procs", "tasks=2"]),
    (["ablate", "batch-size", "--submit", "node=2", "--values", "16"], ["Did you mean 'nodes'"]),
    (["ablate", "batch-size", "--recipe", "cifar"], ["no recipe 'cifar'", "cifar10"]),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=[" ".join(words[1:]) for words, _ in MISTAKES])
def test_a_mistake_is_one_line(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path, words: list[str], told: list[str]
) -> None:
    common = ["--data", labelled, "--out", tmp_path / "out", *([] if "--recipe" in words else ["--recipe", recipe])]
    assert_one_line(cli(*words, *common), *told)
    assert not (tmp_path / "out").exists()


def test_missing_and_unsuitable_images(cli: Cli, labelled: Path, flat: Path, recipe: Path, tmp_path: Path) -> None:
    common = ["ablate", "views", "--recipe", recipe, "--out", tmp_path / "out"]
    assert_one_line(cli(*common), "--data")
    assert_one_line(cli(*common, "--data", tmp_path / "none"), "none", "Give")
    assert_one_line(cli(*common, "--data", labelled, "--test", tmp_path / "none"), "none", "Give")
    assert_one_line(cli(*common, "--data", flat), "has no labels")
    assert_one_line(cli(*common, "--data", labelled, "--test", flat), "has no labels")
    few = write_images(tmp_path / "few", tiny_images(20), classes=2)
    assert_one_line(cli(*common, "--data", few), "k = 20 needs at least 21 images", "20")
    other = write_images(tmp_path / "other", tiny_images(8), classes=4)
    assert_one_line(cli(*common, "--data", labelled, "--test", other), "'class-3' is only in")
    (tmp_path / "file").write_text("")
    assert_one_line(cli(*common[:-1], tmp_path / "file", "--data", labelled), "file", "folder")
    assert not (tmp_path / "out").exists()


def test_the_papers_ablations_are_tables(cli: Cli) -> None:
    code, out, _ = cli("table", "--layout", "ablation-block-size", "--with-paper", "--format", "md")
    assert code == 0
    assert "| block size N_B 512, with teacher | **51.32** |" in out
    assert "| block size N_B 65536, without teacher | 0.11 |" in out
    code, out, err = cli("table", "--layout", "ablation-partition", "--with-paper", "--format", "csv")
    assert "random,100,56.38" in out.splitlines()
    assert "51.32 in the other tables" in err


def test_a_study_is_found_again_and_described(done: Done, quick: Path) -> None:
    study = carp.ablate(
        "prototypes", DATA, done.folder.parent, quick, values="64,256", seeds="0", dry_run=True, quiet=True
    )
    assert study.missing == ("256-seed0",)
    assert repr(study) == f"Study('{done.folder}', 4 jobs done, 1 missing, 2 rows)"
    job = json.loads((done.folder / "64-seed0" / "job.json").read_text())
    assert job["settings"] == {"num_prototypes": 64}
    assert job["versions"]["carp"] == carp.__version__
