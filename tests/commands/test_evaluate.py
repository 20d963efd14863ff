"""`carp eval`: what it prints and writes, and its mistakes."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import carp
from carp.evaluation import runner
from carp.evaluation.protocols import all_protocols
from carp.features.store import open_store, write_manifest
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import tiny_images, write_images


def test_eval_in_a_folder_that_is_no_run(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    assert_one_line(cli("eval", "knn", tmp_path, "--data", labelled), str(tmp_path), "not a run folder", "--out")
    assert_one_line(cli("eval", "knn", tmp_path / "nowhere", "--data", labelled), "nowhere", "no folder")
    assert list(tmp_path.iterdir()) == []


def test_eval_of_a_run_without_a_checkpoint(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")))
    assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy), "no checkpoint")


def test_eval_of_a_run_whose_description_is_damaged(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    for content in ("{", "[]", '{"data": {}}'):
        copy = Path(shutil.copytree(run, tmp_path / str(len(content)), ignore=shutil.ignore_patterns("checkpoints")))
        (copy / "run.json").write_text(content)
        assert_one_line(cli("eval", "knn", copy, "--data", labelled), str(copy / "run.json"))


def test_eval_with_an_unknown_protocol(cli: Cli, run: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "kn", run, "--data", labelled), "'kn'", "Did you mean 'knn'?")
    assert not (run / "results").exists()


def test_eval_without_labels(cli: Cli, run: Path, flat: Path, labelled: Path) -> None:
    assert_one_line(cli("eval", "knn", run, "--data", flat), str(flat), "no labels", "sub-folder per class")
    assert_one_line(cli("eval", "knn", run, "--data", labelled, "--test", flat), str(flat), "no labels")


def test_eval_with_other_classes(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    other = write_images(tmp_path / "other", tiny_images(16), classes=4)
    result = cli("eval", "knn", run, "--data", labelled, "--test", other)
    assert_one_line(result, "different classes", "'class-3' is only in", str(other))


def test_eval_with_more_neighbours_than_images_is_refused_before_anything_is_encoded(
    cli: Cli, run: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "carp.evaluation.workspace.take_features", lambda *_, **__: pytest.fail("something was encoded")
    )
    words = ["eval", "knn", run, "--data", labelled, "--baselines"]
    assert_one_line(cli(*words, "k=66"), "k = 66", "67 images", "received 66", "Lower k")
    assert_one_line(cli(*words, "k=[5,67]", "--test", labelled), "k = 67", "67 images", "received 66", "Lower k")
    with pytest.raises(carp.errors.ConfigError, match=r"k must be greater than or equal to 1, received 0\."):
        carp.evaluate("knn", run, labelled, k=0)


def test_train_and_test_images_with_the_same_names_and_sizes_have_features_of_their_own(
    run: Path, tmp_path: Path
) -> None:
    train, test = (
        write_images(tmp_path / name, tiny_images(30, seed=seed), classes=3, suffix=".bmp")
        for seed, name in enumerate(("train", "test"))
    )
    same = carp.evaluate("knn", run, train, test=train, k=1, out=tmp_path / "out")
    other = carp.evaluate("knn", run, train, test=test, k=1, out=tmp_path / "out")
    assert same.values["top1@1"] == 1.0
    assert other.values["top1@1"] < 0.9  # noise in three classes
    assert len(list((tmp_path / "out" / "features").iterdir())) == 2


def test_features_of_an_earlier_version_are_used_again_for_the_same_path_alone(run: Path, tmp_path: Path) -> None:
    folders = [
        write_images(tmp_path / str(seed), tiny_images(30, seed=seed), classes=3, suffix=".bmp") for seed in range(2)
    ]
    out = tmp_path / "out"
    carp.evaluate("knn", run, folders[0], k=1, out=out)
    (store,) = map(open_store, (out / "features").iterdir())
    earlier = replace(store, folder=out / "features" / store.origin.without_sample().key()[:16])
    store.folder.rename(earlier.folder)
    write_manifest(replace(earlier, origin=store.origin.without_sample()))
    carp.evaluate("knn", run, folders[0], k=1, out=out)
    assert list((out / "features").iterdir()) == [earlier.folder]
    carp.evaluate("knn", run, folders[1], k=1, out=out)
    assert len(list((out / "features").iterdir())) == 2


def test_a_small_bank_takes_the_usual_numbers_of_neighbours_that_it_has(
    run: Path, labelled: Path, tmp_path: Path
) -> None:
    assert carp.evaluate("knn", run, labelled, out=tmp_path).settings["k"] == [10, 20]
    few = write_images(tmp_path / "few", tiny_images(6), classes=2)
    assert carp.evaluate("knn", run, few, out=tmp_path).settings["k"] == [5]
    assert carp.evaluate("knn", run, few, test=few, out=tmp_path).settings["k"] == [6]


def test_eval_shows_how_far_it_is_and_python_does_not_unless_asked(
    cli: Cli,
    run: Path,
    labelled: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("carp.console.progress.SECONDS_BETWEEN_LINES", 0.0)
    words = ["eval", "knn", run, "--data", labelled, "k=5", "--out"]
    code, _, err = cli(*words, tmp_path / "first", "--baselines")
    assert code == 0, err
    names = ["student", "teacher", "raw pixels", "untrained"]
    compared = "knn: 66/66  0:00:00 left"
    lines = [line for name in names for line in (f"{name}, {labelled}: 66/66  0:00:00 left", compared)]
    assert err.splitlines() == lines
    assert cli(*words, tmp_path / "first")[2].splitlines() == [compared] * 2, "all features are there"
    carp.evaluate("knn", run, labelled, k=5, out=tmp_path / "second")
    assert capsys.readouterr() == ("", "")
    carp.evaluate("knn", run, labelled, k=5, out=tmp_path / "third", quiet=False)
    assert "teacher, " in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert "66/66" in cli(*words, tmp_path / "fourth")[2]


def test_eval_with_bad_settings(cli: Cli, run: Path, labelled: Path) -> None:
    words = ["eval", "knn", run, "--data", labelled]
    assert_one_line(cli(*words, "temperature=0"), "temperature", "received 0")
    assert_one_line(cli(*words, "temperatur=1"), "no setting 'temperatur'", "Did you mean 'temperature'?")
    assert_one_line(cli(*words, "temperature=warm"), "temperature must be a valid number", "'warm'")
    assert_one_line(cli(*words, "--temperature", "0"), "temperature", "received '0'")
    assert_one_line(cli(*words, "--temperatur", "1"), "no option '--temperatur'", "Did you mean '--temperature'?")
    assert_one_line(cli(*words, "--basline"), "no option '--basline'", "Did you mean '--baselines'?")
    assert_one_line(cli(*words, "--branch", "techer"), "Did you mean 'teacher'?")
    assert_one_line(cli(*words, "--layer", "layer9"), "no layer 'layer9'", "layer1")
    assert_one_line(cli(*words, "--precision", "half"), "precision", "fp32", "bf16", "'half'")
    assert_one_line(cli("eval", "knn", run), "--data is missing")
    assert_one_line(cli("eval", "all", run, "k=5", "--data", labelled), "no settings")


def test_a_protocol_has_only_the_options_that_it_uses(cli: Cli, run: Path, labelled: Path) -> None:
    for name, option in (
        ("knn", "--cached"),
        ("copies", "--size"),
        ("retrieval", "--test"),
        ("retrieval", "--predictions"),
        ("detection", "--layer"),
        ("detection", "--baselines"),
        ("all", "--predictions"),
    ):
        assert_one_line(cli("eval", name, run, "--data", labelled, option, "x"), f"no option '{option}'")
        assert f"{option} " not in cli("eval", name, "--help")[1]
    with pytest.raises(carp.errors.ConfigError, match="no setting 'cached'"):
        carp.evaluate("knn", run, labelled, cached=True)
    with pytest.raises(carp.errors.ConfigError, match=r"detection does not use size: leave it out.*sizes"):
        carp.evaluate("detection", run, labelled, size=64)
    with pytest.raises(carp.errors.ConfigError, match="copies does not use test"):
        carp.evaluate("copies", run, labelled, test=labelled)


def test_settings_are_options_or_key_value(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    words = ["eval", "knn", run, "--data", labelled, "--branch", "teacher", "--out", tmp_path]
    for more in (
        ["--k", "3,5", "--temperature", 0.1],
        ["--k", 3, "--k", 5, "temperature=0.1"],
        ["k=[3, 5]", "temperature=0.1"],
        ["k=3,5", "--temperature=0.1"],
    ):
        code, _, err = cli(*words, *more)
        assert code == 0, err
    (path,) = (tmp_path / "results").iterdir()
    settings = json.loads(path.read_text())["settings"]
    assert (settings["k"], settings["temperature"]) == ([3, 5], 0.1)


def test_bare_eval_lists_the_protocols_with_one_line_each(cli: Cli) -> None:
    for words in (["eval"], ["eval", "--help"]):
        out = "".join(cli(*words)[1:])
        for protocol in all_protocols():
            assert re.search(rf"{protocol.name} +{re.escape(protocol.summary)}", out)


def test_a_misspelt_method_is_told_the_nearest(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    file = tmp_path / "weights.th"
    file.write_bytes(b"")
    result = cli("eval", "knn", f"cifar-resnt:{file}", "--data", labelled)
    assert_one_line(result, "'cifar-resnt'", "Did you mean 'cifar-resnet'?", "`carp weights`")
    assert_one_line(cli("embed", f"xyz:{file}", "--data", labelled, "--out", tmp_path / "x"), "'xyz'")
    assert_one_line(cli("eval", "knn", "swaf:no.pth", "--data", labelled), "Did you mean 'swav'?")
    assert_one_line(cli("eval", "knn", "12:such/run", "--data", labelled), "there is no folder", "12:such/run")


def test_eval_writes_and_prints_what_it_found(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    code, out, err = cli("eval", "knn", run, "--data", labelled, "--baselines", "k=5", "--out", tmp_path)
    assert code == 0, err
    results = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert {result["model"]["branch"] for result in results} == {"raw pixels", "untrained", "student", "teacher"}
    for result in results:
        assert result["settings"] == {
            "size": 32, "resize": 32, "precision": "fp32", "transform": 2, "interpolation": "bicubic",
            "k": [5], "temperature": 0.07, "leave_one_out": True,
        }  # fmt: skip
        assert result["data"]["train"] == str(labelled)
        assert result["data"]["test"] == "leave one out"
        assert result["versions"]["carp"] == carp.__version__
        assert len(result["model"]["hash"]) == 64
        assert result["model"]["branch"] in out
        for value in result["values"].values():
            assert 0 <= value <= 1
            assert f"{100 * value:.1f}" in out
    assert "test: leave one out\n" in out


def test_other_settings_write_another_file_and_the_same_settings_the_same(
    cli: Cli, run: Path, labelled: Path, tmp_path: Path
) -> None:
    for k, count in ((5, 1), (5, 1), (6, 2)):
        assert cli("eval", "knn", run, "--data", labelled, f"k={k}", "--branch", "student", "--out", tmp_path)[0] == 0
        assert len(list((tmp_path / "results").iterdir())) == count


def test_a_second_protocol_extracts_nothing(
    run: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carp.evaluate("knn", run, labelled, out=tmp_path)
    monkeypatch.setattr(
        "carp.encoders.frozen_encoder.feature_batches", lambda *_, **__: pytest.fail("something was encoded")
    )
    carp.evaluate("kmeans", run, labelled, out=tmp_path, redos=1, seeds=0)
    with pytest.raises(pytest.fail.Exception, match="something was encoded"):
        carp.evaluate("kmeans", run, labelled, branch="student", out=tmp_path, redos=1, seeds=0)


def test_all_shows_every_protocol_that_the_data_allow(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    code, out, err = cli("eval", "all", run, "--data", labelled, "--test", labelled, "--out", tmp_path)
    assert code == 0, err
    for word in ("k-NN, top-1, k = 20", "k-means, NMI", "Linear, top-1", "Few-shot, top-1, n = 16"):
        assert word in out
    assert len(list((tmp_path / "results").iterdir())) == 8
    assert len(list((tmp_path / "results").glob("few-shot-*.json"))) == 2
    assert f"test: {labelled}\n" in out
    assert err.count("too few images for k = 100, 200; evaluated with k = 10, 20.") == 1
    assert len(set(err.splitlines())) == len(err.splitlines())


def test_all_tells_of_unreadable_images_once(cli: Cli, run: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(44), classes=2)
    for path in sorted(folder.glob("*/*.png"))[:4]:
        path.write_bytes(b"")
    code, out, err = cli("eval", "all", run, "--data", folder, "--out", tmp_path, "--branch", "teacher")
    assert code == 0, err
    assert err.count("4 of 44 images") == 1
    assert "k-NN: leave one out; k-means: the same images; Linear, Few-shot: 20% of every class, held out" in out


def test_all_loads_every_encoder_once(
    cli: Cli, run: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = runner.load_encoder
    monkeypatch.setattr(runner, "load_encoder", lambda *words: loaded.append(words[1]) or load(*words))
    code, _, err = cli("eval", "all", run, "--data", labelled, "--out", tmp_path)
    assert code == 0, err
    assert loaded == ["student", "teacher"]


def test_stored_features_are_evaluated_without_the_encoder(
    cli: Cli, run: Path, labelled: Path, flat: Path, tmp_path: Path
) -> None:
    for name, data in (("labelled", labelled), ("flat", flat)):
        code, out, err = cli("embed", run, "--data", data, "--out", tmp_path / name)
        assert code == 0, err
        assert "images × 16" in out
    code, out, _ = cli("eval", "knn", "k=5", "--data", tmp_path / "labelled", "--out", tmp_path / "out")
    assert code == 0
    assert f"{100 * carp.evaluate('knn', run, labelled, k=5, out=tmp_path).values['top1@5']:.1f}" in out
    assert_one_line(cli("eval", "knn", "--data", tmp_path / "flat"), "has no labels")
    words = ["embed", run, "--data", labelled, "--out"]
    assert_one_line(cli(*words, tmp_path / "flat"), "other features", f"of the 64 images {flat}, not the 66 images")
    for more in (["--branch", "student"], ["--layer", "layer3"]):
        result = cli(*words, tmp_path / "labelled", *more)
        assert_one_line(result, "of run (teacher, layer encoder), not run (", more[1])


def test_features_of_two_encoders_are_not_compared(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    for branch in ("teacher", "student"):
        assert cli("embed", run, "--data", labelled, "--out", tmp_path / branch, "--branch", branch)[0] == 0
    words = ["eval", "knn", "--data", tmp_path / "teacher", "--test", tmp_path / "student"]
    assert_one_line(cli(*words), "different ways", "weights", "same encoder")


def test_embed_takes_other_outputs_and_writes_other_formats(
    cli: Cli, run: Path, labelled: Path, tmp_path: Path
) -> None:
    words = ["embed", run, "--data", labelled, "--out"]
    assert "66 images × 16" in cli(*words, tmp_path / "a", "--layer", "projector", "--format", "csv")[1]
    assert (tmp_path / "a" / "features.csv").read_text().count("\n") == 67
    assert "66 images × 8" in cli(*words, tmp_path / "b", "--layer", "layer1", "--size", 48, "--format", "parquet")[1]
    assert (tmp_path / "b" / "features.parquet").exists()
    assert_one_line(cli(*words, tmp_path / "c", "--format", "xls"), "no format 'xls'", "npy, parquet, csv")
    assert not (tmp_path / "c").exists()


def test_a_test_part_may_lack_classes_and_may_not_have_others(run: Path, labelled: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    for name in ("class-1", "class-2"):
        shutil.copytree(labelled / name, part / name)
    assert carp.evaluate("knn", run, labelled, test=part, k=1, out=tmp_path).values["top1@1"] == 1.0
    with pytest.raises(carp.errors.DataError, match=r"different classes: 'class-0' is only in"):
        carp.evaluate("knn", run, part, test=labelled, k=1, out=tmp_path)


def test_linear_trains_on_crops_or_on_stored_features(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    words = ["eval", "linear", run, "--data", labelled, "--branch", "teacher", "--out", tmp_path, "epochs=2"]
    for flags in ([], ["--cached"]):
        code, out, err = cli(*words, *flags)
        assert code == 0, err
        assert "Linear, top-1" in out
        assert "note: linear, teacher: the best of 40 classifiers" in err
    results = [json.loads(path.read_text()) for path in (tmp_path / "results").iterdir()]
    assert {result["settings"]["cached"] for result in results} == {True, False}
    assert all(len(result["details"]["grid"]) == 40 for result in results)
    assert not (tmp_path / "linear").exists(), "what was kept to continue is removed in the end"
    (store,) = (tmp_path / "features").iterdir()
    assert_one_line(cli("eval", "linear", "--data", store), "random crops of the images", "--cached")


def test_an_interrupted_linear_evaluation_does_not_train_again_what_it_finished(
    run: Path, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = carp.evaluate("linear", run, labelled, out=tmp_path / "first", epochs=2)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("carp.evaluation.runner._write", interrupt)
        carp.evaluate("linear", run, labelled, out=tmp_path, epochs=2)
    assert (tmp_path / "linear").exists()
    monkeypatch.setattr(
        "carp.evaluation.linear.grid_training.TwoGrids.step", lambda *_, **__: pytest.fail("it trained")
    )
    assert carp.evaluate("linear", run, labelled, out=tmp_path, epochs=2).values == first.values
    assert not (tmp_path / "linear").exists()


def test_linear_and_few_shot_hold_out_a_fifth_without_test_images(run: Path, labelled: Path, tmp_path: Path) -> None:
    result = carp.evaluate("few-shot", run, labelled, shots=["full"], out=tmp_path)
    assert result.data["test"] == "20% of every class, held out"
    assert result.details["full"][0]["images"] == 66 - 12  # of 22 images of a class four are held out


def test_retrieval_of_ones_own_images(cli: Cli, run: Path, labelled: Path, flat: Path, tmp_path: Path) -> None:
    words = ["eval", "retrieval", run, "--out", tmp_path, "--branch", "teacher"]
    code, out, err = cli(*words, "--database", labelled)
    assert code == 0, err
    assert "Retrieval, mAP" in out
    code, _, err = cli(*words, "--data", labelled, "--queries", labelled, "multi_scale=true", "max_side=24", "k=1")
    assert code == 0, err
    relevance = tmp_path / "relevance.csv"
    relevance.write_text("".join(f"{i:03d}.png,{i + 1:03d}.png\n" for i in range(10)))
    few = write_images(tmp_path / "few", tiny_images(10))
    code, _, err = cli(*words, "--data", flat, "--queries", few, "--truth", relevance, "--out", tmp_path)
    assert code == 0, err
    results = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("retrieval-*.json")]
    assert len(results) == 3
    assert all(0 <= result["values"]["map"] <= 1 and len(result["versions"]) > 1 for result in results)
    assert_one_line(cli(*words, "--data", flat), "has no labels")
    assert_one_line(cli(*words, "--data", flat, "--truth", tmp_path / "none.pkl"), "none.pkl")
    assert_one_line(cli(*words, "--data", labelled, "--test", labelled), "no option '--test'")
    assert_one_line(cli(*words, "--data", labelled, "maxside=3"), "Did you mean 'max_side'?")


def test_copies_are_made_and_found(cli: Cli, run: Path, flat: Path, tmp_path: Path) -> None:
    attacked = tmp_path / "attacked"
    assert cli("data", "attack", flat, "--out", attacked, "--limit", 8)[0] == 0
    words = ["eval", "copies", run, "--data", attacked, "--branch", "teacher", "--out", tmp_path, "side=32"]
    code, out, err = cli(*words)
    assert code == 0, err
    assert "Copy detection, mAP" in out
    code, _, err = cli(*words, f"distractors={flat}", f"whiten={flat}")
    assert code == 0, err
    assert_one_line(cli("eval", "copies", run, "--data", flat), str(flat))


def test_an_option_written_as_a_setting_is_refused(cli: Cli, run: Path, labelled: Path, tmp_path: Path) -> None:
    words = ["eval", "knn", run, "--data", labelled]
    assert_one_line(cli(*words, f"root={tmp_path}"), "'root' is an option", f"--root {tmp_path}")
    assert_one_line(cli(*words, "download=true"), "'download' is an option", "--download.")
    assert_one_line(cli(*words, "extra"), "key=value", "received 'extra'")


def test_unreadable_images_do_not_count_for_the_usual_k(run: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images(22), classes=2)
    for path in sorted(folder.glob("*/*.png"))[:4]:
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="4 of 22 images"):
        assert carp.evaluate("knn", run, folder, out=tmp_path).settings["k"] == [10]


def test_python_takes_a_store_and_one_protocol_at_a_time(run: Path, labelled: Path, tmp_path: Path) -> None:
    store = carp.embed(run, labelled, tmp_path / "store")
    ours = carp.evaluate("knn", None, store, k=3).values
    assert ours == carp.evaluate("knn", run, labelled, k=3, out=tmp_path).values
    with pytest.raises(carp.errors.ConfigError, match=r"no protocol 'all'.*knn"):
        carp.evaluate("all", run, labelled)
