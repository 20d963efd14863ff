"""`carp train --from`: training that starts from weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file

import carp
from carp.config import resolve
from carp.console.progress import Display
from carp.encoders.starting_point import settings_with_start
from carp.errors import CarpError
from carp.evaluation.during_training.start_share import with_measured_start_share
from carp.images.loading.loader import make_loader
from carp.images.open_source import open_source
from carp.images.sources.array import ArraySource
from carp.report.run_page.curves import run_charts
from carp.report.run_page.run_records import RunRecords
from carp.runs import checkpoint
from carp.runs.metrics_log import read_metrics
from carp.runs.run_folder import open_run
from carp.training.planning.time_budget import budget
from tests.commands.conftest import Cli, assert_one_line
from tests.encoders.foreign.layouts import narrow, released
from tests.encoders.foreign.test_vit import dino_file, transformer
from tests.helpers import TINY, assert_same_run, tiny_images

NAME = "test_efficientnet"
# The recipe of the tests without what the weights decide
FREE = {key: value for key, value in TINY.items() if key not in {"encoder", "encoder_options", "stem_stride"}}


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "free.yaml"
    path.write_text(yaml.safe_dump({**FREE, "epochs": 2}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network of timm, with a mean of its own, as the Hub has it."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("hub") / "model"
    path.mkdir()
    save_file(timm.create_model(NAME, num_classes=5).state_dict(), path / "model.safetensors")
    images = {"mean": [0.4, 0.5, 0.6], "std": [0.3, 0.3, 0.3], "input_size": [3, 40, 40], "interpolation": "bilinear"}
    (path / "config.json").write_text(json.dumps({"architecture": NAME, "pretrained_cfg": images}))
    return path


@pytest.fixture(scope="module")
def moco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "moco.pth.tar"
    torch.save(released("moco-v2", narrow().state_dict())[0], path)
    return path


def encoder_tensors(run: Path | str, branch: str) -> dict[str, torch.Tensor]:
    opened = open_run(run)
    prefix = f"model.{branch}.encoder."
    return {k.removeprefix(prefix): t for k, t in opened.checkpoint().tensors.items() if k.startswith(prefix)}


def features(model: object, **options: Any) -> np.ndarray:
    return carp.load(str(model), **options).embed(tiny_images(5, 40))


def test_a_run_starts_with_the_weights(folder: Path, labelled: Path, free: Path, tmp_path: Path) -> None:
    run = carp.train(labelled, tmp_path / "run", free, start=folder, quiet=True, global_size=40)
    config = run.config
    assert (config.encoder, config.stem, config.start) == (NAME, "encoder", str(folder))
    assert (config.mean, config.deviation, config.interpolation) == ((0.4, 0.5, 0.6), (0.3, 0.3, 0.3), "bilinear")
    assert config.start_digest is not None
    # Epoch 0 is the start, in both branches, and the baseline `untrained`
    for branch in ("student", "teacher"):
        assert np.allclose(features(f"{run.folder}@0", branch=branch), features(folder), atol=1e-5)
    assert np.array_equal(features(run.folder, branch="untrained"), features(f"{run.folder}@0"))
    assert not np.allclose(features(run.folder, branch="teacher@last"), features(folder), atol=1e-3)
    # Its digest is in the checkpoints
    assert run.checkpoint().state["settings"]["start_digest"] == config.start_digest


def test_exports_describe_the_images_of_the_start(folder: Path, flat: Path, free: Path, tmp_path: Path) -> None:
    run = carp.train(flat, tmp_path / "run", free, start=folder, quiet=True, epochs=1)
    assert run.config.global_size == 32  # that of the recipe
    for format, out in (("safetensors", "a.safetensors"), ("timm", "b")):
        about = carp.export(run.folder, tmp_path / out, format=format).about
        assert (about["mean"], about["std"], about["interpolation"]) == ([0.4, 0.5, 0.6], [0.3, 0.3, 0.3], "bilinear")
        assert np.allclose(features(tmp_path / out, size=32), features(run.folder), atol=1e-4)
    # A layer and the embedding take the same images
    assert carp.load(run.folder, layer="blocks").embed(tiny_images(2)).shape[0] == 2
    assert carp.load(run.folder, layer="projector").embed(tiny_images(2)).shape == (2, TINY["embedding"])


def test_every_form_of_weights_is_a_start(
    folder: Path, moco: Path, run: Path, flat: Path, free: Path, tmp_path: Path
) -> None:
    carp.export(run, tmp_path / "export.safetensors", format="safetensors")
    forms = {
        f"timm:{NAME}:{folder / 'model.safetensors'}": features(f"timm:{NAME}:{folder / 'model.safetensors'}", size=32),
        f"moco-v2:{moco}": features(f"moco-v2:{moco}", size=32),
        str(moco): features(f"moco-v2:{moco}", size=32),
        str(run): features(run),
        f"{run}@2": features(f"{run}@2"),
        str(tmp_path / "export.safetensors"): features(run),
    }
    for number, (form, expected) in enumerate(forms.items()):
        made = carp.train(flat, tmp_path / f"run{number}", free, start=form, quiet=True, epochs=1)
        assert np.allclose(features(f"{made.folder}@0", size=32), expected, atol=1e-4), form
        assert made.config.global_size == 32
        assert made.config.stem == ("small" if str(run) in form or "export" in form else "encoder")


def test_a_vision_transformer_is_a_start_of_any_size(flat: Path, free: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(dino_file(transformer().state_dict()), tmp_path / "dino.pth")
    run = carp.train(flat, tmp_path / "run", free, start=tmp_path / "dino.pth", quiet=True, epochs=1)
    assert run.config.encoder_options["dynamic_img_size"] is True
    assert run.config.global_size == 32
    whole = {"size": 64, "resize": 64}  # the size of its positions, which need no interpolation
    assert np.allclose(features(f"{run.folder}@0", **whole), features(tmp_path / "dino.pth", **whole), atol=1e-4)


def test_the_size_follows_from_the_weights_unless_it_is_given(folder: Path, flat: Path, tmp_path: Path) -> None:
    small = {**FREE, "epochs": 1, "workers": 0}
    del small["global_size"]
    by_default = carp.train(flat, tmp_path / "a", start=folder, quiet=True, **small)
    assert by_default.config.global_size == 40  # the default recipe has 160
    given = carp.train(flat, tmp_path / "b", start=folder, quiet=True, **small, global_size=24)
    assert given.config.global_size == 24
    named = carp.train(flat, tmp_path / "c", "small-images", start=folder, quiet=True, **small)
    assert named.config.global_size == 32


def test_a_recipe_may_name_the_start(folder: Path, flat: Path, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**FREE, "epochs": 1, "start": str(folder)}))
    run = carp.train(flat, tmp_path / "run", path, quiet=True)
    assert run.config.encoder == NAME
    # config.yaml is a recipe for another run; its digest must fit
    again = carp.train(flat, tmp_path / "again", run.folder / "config.yaml", quiet=True)
    assert again.config == run.config
    config = yaml.safe_load((run.folder / "config.yaml").read_text())
    path.write_text(yaml.safe_dump({**config, "start_digest": "0" * 64}))
    with pytest.raises(CarpError, match="start_digest"):
        carp.train(flat, tmp_path / "other", path, quiet=True)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("encoder=resnet18", NAME),
        ("mean=[0.5,0.5,0.5]", "[0.4, 0.5, 0.6]"),
        ("interpolation=bicubic", "bilinear"),
        ("stem=small", "stem"),
        ("encoder_options={depth: 2}", "encoder_options"),
    ],
)
def test_settings_that_contradict_the_weights_are_refused(
    setting: str, said: str, folder: Path, flat: Path, free: Path, cli: Cli, tmp_path: Path
) -> None:
    words = ["train", flat, "--from", folder, "--recipe", free, "--out", tmp_path / "run", setting]
    assert_one_line(cli(*words), setting.split("=", maxsplit=1)[0], said)
    assert not (tmp_path / "run").exists()


def bad_starts(folder: Path, moco: Path, home: Path) -> dict[str, str]:
    whole = moco.read_bytes()
    (home / "truncated.pth").write_bytes(whole[: len(whole) // 2])
    (home / "empty.pth").write_bytes(b"")
    (home / "words.pth").write_text("not weights")
    (home / "evil.pth").write_bytes(b"cos\nsystem\n(S'touch evil'\ntR.")
    torch.save({"a": torch.zeros(3)}, home / "other.pth")
    torch.save({"x": 1}, home / "nothing.pth")
    shutil.copytree(folder, home / "odd")
    (home / "odd" / "config.json").write_text(json.dumps({"architecture": "resnet18"}))
    return {
        str(home / "truncated.pth"): "truncated.pth",
        str(home / "empty.pth"): "empty",
        str(home / "words.pth"): "words.pth",
        str(home / "evil.pth"): "evil.pth",
        str(home / "other.pth"): "other.pth",
        str(home / "nothing.pth"): "nothing.pth",
        str(home / "missing.pth"): "missing.pth",
        str(home / "odd"): "resnet18",
        f"swav:{moco}": "swav",
        f"timm:resnet18:{moco}": "resnet18",
        "lite1": "lite1",
    }


def test_bad_starts_are_one_line_and_leave_nothing(
    folder: Path, moco: Path, flat: Path, free: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    for start, said in bad_starts(folder, moco, tmp_path).items():
        assert_one_line(cli("train", flat, "--from", start, "--recipe", free, "--out", out), said)
        assert not out.exists()
    assert not (tmp_path / "evil").exists()


def test_networks_that_training_cannot_build_are_refused(flat: Path, free: Path, cli: Cli, tmp_path: Path) -> None:
    torch.manual_seed(0)
    torch.save(narrow().state_dict(), tmp_path / "keras.pth")
    words = ["train", flat, "--from", f"resnet-v1:{tmp_path / 'keras.pth'}", "--recipe", free]
    assert_one_line(cli(*words, "--out", tmp_path / "run"), "cannot be trained further", "carp embed")
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_needs_only_its_checkpoint(
    folder: Path, labelled: Path, free: Path, cli: Cli, tmp_path: Path
) -> None:
    start = Path(shutil.copytree(folder, tmp_path / "start"))
    words = [
        "train",
        labelled,
        "--recipe",
        free,
        "--from",
        start,
        "--val",
        labelled,
        "epochs=3",
        "encoder_statistics=kept",
        "start_share=0.5",
    ]
    assert cli(*words, "--out", tmp_path / "whole")[0] == 0
    out = tmp_path / "run"
    assert cli(*words, "--out", out)[0] == 0
    # Back to the step before the last epoch
    for path in checkpoint.list_checkpoints(out / "checkpoints"):
        if (checkpoint.step_of(path) or 0) > 6:
            shutil.rmtree(path)
    shutil.rmtree(start)
    code, _, err = cli(*words, "--out", out)
    assert code == 0, err
    assert "resuming" in err
    assert_same_run(out, tmp_path / "whole")


def test_little_is_kept_of_a_start_that_does_not_know_the_images(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**FREE, "start": str(folder), "start_share": "auto", "global_size": 40}
    monkeypatch.setattr("carp.evaluation.during_training.start_share.FEWEST", 2)
    black_and_white = np.stack([np.zeros((40, 40, 3), np.uint8), np.full((40, 40, 3), 255, np.uint8)])
    noise = np.random.default_rng(0).integers(0, 256, (16, 40, 40, 3), dtype=np.uint8)
    for images, share in ((black_and_white, 0.5), (noise, 0.0), (noise[:1], 0.5)):  # one image is too few
        config = resolve(settings_with_start(None, values), num_images=len(images))
        assert config.start_share == 0.5  # until it is measured
        found = with_measured_start_share(
            config, ArraySource(images), torch.device("cpu"), tmp_path, Display(quiet=True)
        )
        assert found == config.model_copy(update={"start_share": share})


def test_the_measured_share_is_printed_recorded_and_kept(
    folder: Path, labelled: Path, free: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.evaluation.during_training.start_share.FEWEST", 2)
    start = Path(shutil.copytree(folder, tmp_path / "start"))
    words = ["train", labelled, "--recipe", free, "--from", start, "--out", tmp_path / "run", "start_share=auto"]
    code, _, err = cli(*words)
    assert code == 0, err
    share = open_run(tmp_path / "run").config.start_share
    assert share in (0, 0.5)
    assert "recognises" in err
    assert f"start_share={share:g}" in err
    shutil.rmtree(start)  # a resumed run does not measure it again
    code, _, err = cli(*words)
    assert code == 0, err
    assert "is finished" in err
    assert "recognises" not in err
    # Without a start, auto is 0
    assert resolve({**TINY, "start_share": "auto"}, num_images=10).start_share == 0


def test_another_start_is_refused_when_a_run_is_resumed(
    folder: Path, moco: Path, flat: Path, free: Path, cli: Cli, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    words = ["train", flat, "--recipe", free, "--out", out]
    assert cli(*words, "--from", folder)[0] == 0
    before = (out / "config.yaml").read_bytes()
    assert_one_line(cli(*words, "--from", f"moco-v2:{moco}"), "other weights", str(folder))
    assert_one_line(cli(*words), f"--from {folder}")
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    code, _, err = cli(*words, "--from", moved)  # the same weights elsewhere
    assert code == 0, err
    assert "is finished" in err
    assert (out / "config.yaml").read_bytes() == before
    plain = tmp_path / "plain"
    carp.train(flat, plain, quiet=True, **{**TINY, "epochs": 1})
    assert_one_line(cli("train", flat, "--out", plain, "--from", folder), "random weights")


def test_with_labels_the_start_is_the_baseline(folder: Path, labelled: Path, free: Path, tmp_path: Path) -> None:
    run = carp.train(labelled, tmp_path / "run", free, start=folder, quiet=True, validation=str(labelled))
    metrics = read_metrics(run.folder / "metrics.jsonl")
    assert set(metrics[0]) >= {"knn_start", "knn_raw_pixels"}
    assert "knn_untrained" not in metrics[0]
    assert run.config.held_out == 0


def test_the_best_checkpoint_is_the_default(folder: Path, free: Path, labelled: Path, tmp_path: Path) -> None:
    """A learning rate that destroys the encoder: the best checkpoint is the start."""
    run = carp.train(
        labelled, tmp_path / "run", free, start=folder, quiet=True, validation=str(labelled), lr=[300.0, 300.0]
    )
    lines = read_metrics(run.folder / "metrics.jsonl")
    values = {0: lines[0]["knn_start"]} | {m["epoch"]: m["knn_teacher"] for m in lines if "knn_teacher" in m}
    best = max(values, key=lambda epoch: (values[epoch], -epoch))
    point = run.checkpoint()
    assert point.step == best * run.steps_per_epoch
    assert carp.load(run.folder).epochs == best
    assert carp.load(run.folder, "teacher@last").epochs == run.config.epochs
    assert carp.load(run.folder, "teacher@last").branch == "teacher@last"
    last = carp.evaluate("knn", run.folder, labelled, branch="teacher@last", out=tmp_path / "eval", k=[3])
    assert last.model["branch"] == "teacher@last"


def test_without_labels_held_out_images_judge(folder: Path, free: Path, cli: Cli, tmp_path: Path) -> None:
    images = tiny_images(320)
    run = carp.train(images, tmp_path / "run", free, start=folder, quiet=True, epochs=1, batch_size=64)
    assert run.config.held_out == 32
    assert run.steps_per_epoch == (320 - 32) // 64
    metrics = read_metrics(run.folder / "metrics.jsonl")
    assert "label_free_start" in metrics[0]
    assert 0 < metrics[0]["label_free_standard_error"] < 0.5 / 32**0.5 + 1e-9
    assert any("label_free_teacher" in m for m in metrics)
    epoch = carp.load(run.folder).epochs
    assert epoch in {0, 1}
    assert (run.folder / "plots.png").exists()
    # The report shows the measure, and which checkpoint is used
    records = RunRecords(run)
    assert records.used == ("epoch 1" if epoch else "the start")
    assert records.used in {fact.value for fact in records.facts if fact.name == "checkpoint"}
    assert "recognition" in {chart.key for chart in run_charts([records])}
    assert RunRecords(open_run(f"{run.folder}@0")).used is None


def test_with_too_few_images_a_run_says_that_it_is_not_compared(
    folder: Path, flat: Path, free: Path, cli: Cli, tmp_path: Path
) -> None:
    code, _, err = cli("train", flat, "--from", folder, "--recipe", free, "--out", tmp_path / "run", "epochs=1")
    assert code == 0
    assert "not compared with its start" in err


def test_the_default_recipe_with_a_start_is_adapt(folder: Path, labelled: Path, tmp_path: Path) -> None:
    run = carp.train(labelled, tmp_path / "run", start=folder, quiet=True, global_size=40, epochs=1, report=False)
    assert (run.config.encoder_statistics, run.config.optimiser) == ("kept", "adamw")
    for name, tensor in encoder_tensors(run.folder, "student").items():
        if "running" in name:
            assert torch.equal(tensor, encoder_tensors(f"{run.folder}@0", "student")[name]), name


@pytest.mark.usefixtures("slow_steps")
def test_minutes_make_the_views_smaller_before_there_are_fewer_epochs(folder: Path, labelled: Path) -> None:
    source, device = open_source(labelled), torch.device("cpu")
    config = resolve({**FREE, "epochs": 4, "global_size": 224, "encoder": NAME, "start": str(folder)}, num_images=64)
    per_epoch = make_loader(source, config).steps_per_epoch
    for minutes, size, epochs in ((5, 224, 4), (0.6, 80, 4), (0.2, 64, 2)):
        found = budget(minutes * per_epoch, config, source, device, any_size=True)
        assert (found.size.get("global_size", 224), found.epochs) == (size, epochs)
    assert budget(0.6 * per_epoch, config, source, device, any_size=False).size == {}


def test_a_dry_run_compares_three_ways(cli: Cli, folder: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carp.training.planning.timing._SECONDS", 1.0)
    for limit in ("SECONDS", "_SECONDS"):
        monkeypatch.setattr(f"carp.training.planning.alternatives.{limit}", 0.5)
    words = ["epochs=1", "batch_size=8", "threads=1", "report=false", "num_prototypes=64", "block_size=8"]
    code, out, err = cli("train", labelled, "--from", folder, "--dry-run", "--out", "my run", "global_size=32", *words)
    assert code == 0, err
    ways = {line[:22].strip(): line[22:] for line in out.splitlines() if " carp " in line}
    assert list(ways) == ["no training", "adapt", "from scratch"]
    assert all("not measured" not in text for text in ways.values()), ways
    assert f"carp train {labelled} --from {folder} global_size=32 epochs=1" in ways["adapt"]
    assert "epochs=1" in ways["from scratch"]
    assert all(ways[name].endswith(" --out 'my run'") for name in ("adapt", "from scratch")), "ready to be pasted"
    _, out, _ = cli("train", labelled, "--from", folder, "--dry-run", "global_size=32", *words)
    outs = [line.split(" --out ")[1] for line in out.splitlines() if " --out " in line]
    assert outs == ["runs/adapted", "runs/scratch"]
    # What it cannot know yet, and what the run would not do
    assert f"0.5 if {folder} knows the images" in out
    assert "not compared with its start" in out  # there are too few images


def test_a_mistyped_name_of_packaged_weights_is_suggested(cli: Cli, labelled: Path, tmp_path: Path) -> None:
    assert_one_line(cli("train", labelled, "--from", "lite", "--out", tmp_path / "run"), "lite", "'lite0'")
    assert not (tmp_path / "run").exists()
