"""What the commands print and write when all is well."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import carp
from carp.config import Config, resolve
from carp.config.recipe import list_recipes, parse_overrides, read_recipe, read_yaml
from carp.evaluation.protocols import all_protocols
from carp.model.branch import Branch
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import TINY, steps_of, tiny_images, write_images


def test_dry_run_tells_the_plan_and_creates_nothing(
    cli: Cli, labelled: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("train", labelled, "--recipe", recipe, "--out", "run", "--dry-run", "epochs=3")
    assert code == 0, err
    assert list(tmp_path.iterdir()) == []
    settings, _, plan = out.partition("---\n")
    config = resolve(yaml.safe_load(settings), num_images=66)
    assert config == resolve({**TINY, "epochs": 3}, num_images=66)
    branch = Branch(config)
    for name, module in [("encoder", branch.encoder), ("projector", branch.projector), ("prototype", branch.assigner)]:
        count = sum(p.numel() for p in module.parameters())
        assert re.search(rf"{name} parameters +{count:,}\n", plan), plan
    assert re.search(r"images +66 ", plan)
    assert re.search(r"classes +3\n", plan)
    assert re.search(r"steps +12 \(4 per epoch\)", plan)
    assert float(re.search(r"memory in total +([\d.]+) GiB", plan)[1]) >= 0
    assert re.search(r"stem +small \(3×3, stride 2, no pooling\), because global_size 32 <= 64; stem=encoder", plan)
    assert re.search(r"time +about [\d.]+ s.* per step, measured over 3 steps on cpu with 1 thread", plan), plan
    assert re.search(r"best choice here +the settings as they are\n", plan), plan
    assert "warning" not in plan


@pytest.mark.slow
def test_dry_run_with_the_default_recipe_needs_nothing_but_images(
    cli: Cli, flat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.training.planning.timing._SECONDS", 0.1)
    code, out, err = cli("train", flat, "--dry-run")
    assert code == 0, err
    assert "memory in total" in out
    assert re.search(r"stem +the encoder's own, because global_size 160 > 64\n", out)
    assert re.search(r"warning +images are 32×32 and global_size is 160: consider --recipe small-images", out)
    assert re.search(r"time +at most .* per step, measured over 1 step of 8 images, scaled to 16, on ", out)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stem=encoder"], "the encoder's own, as set"),
        (["stem=small", "stem_stride=1"], "small (3×3, stride 1, no pooling), as set"),
        (["encoder=convnext_atto", "encoder_options={}"], "the encoder's own, because convnext_atto is not a ResNet"),
    ],
)
def test_dry_run_says_which_stem_and_why(
    cli: Cli, flat: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: str
) -> None:
    monkeypatch.setattr("carp.training.planning.memory_check.available_memory", lambda _device: 0)
    code, out, err = cli("train", flat, "--recipe", recipe, "--dry-run", *words)
    assert code == 0, err
    assert re.search(rf"stem +{re.escape(expected)}\n", out), out


def test_dry_run_does_not_time_what_does_not_fit_into_memory(
    cli: Cli, flat: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carp.training.planning.memory_check.available_memory", lambda _device: 2**10)
    monkeypatch.setattr("carp.training.planning.dry_run.time_steps", lambda *_: pytest.fail("it was timed"))
    code, out, err = cli("train", flat, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +not measured: [\d.]+ GiB is needed, .*0.00 GiB is free\n", out), out


def test_dry_run_measures_the_time_though_an_image_cannot_be_read(cli: Cli, recipe: Path, tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", tiny_images())
    (folder / "000.png").write_bytes(b"")
    code, out, err = cli("train", folder, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +about ", out), out
    for path in folder.iterdir():
        path.write_bytes(b"")
    code, out, err = cli("train", folder, "--recipe", recipe, "--dry-run")
    assert code == 0, err
    assert re.search(r"time +not measured: none of the \d+ images .* can be read; the first is .*000\.png", out), out


def test_training_begins_with_a_line_about_the_run(cli: Cli, flat: Path, recipe: Path, tmp_path: Path) -> None:
    code, _, err = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    first = err.splitlines()[0]
    parameters = sum(p.numel() for p in Branch(resolve({**TINY}, num_images=64)).encoder.parameters())
    threads = torch.get_num_threads()
    assert first.startswith(f"64 images, resnet18 ({parameters / 1e6:.3g} M parameters), 4 steps in 1 epoch, cpu with ")
    assert first.endswith(f"{threads} thread" + ("s" if threads > 1 else ""))


def test_training_begins_with_a_warning_when_the_views_do_not_suit_the_images(
    cli: Cli, recipe: Path, tmp_path: Path
) -> None:
    photos = write_images(tmp_path / "photos", tiny_images(16, 128))
    code, _, err = cli("train", photos, "--recipe", recipe, "--out", tmp_path / "run")
    assert code == 0, err
    assert err.startswith("warning: images are 128×128 and global_size is 32: most detail is lost; consider --recipe")


def test_words_and_keyword_arguments_make_the_same_configuration(
    cli: Cli, flat: Path, recipe: Path, tmp_path: Path
) -> None:
    words = ["lr=[1e-2, 1e-3]", "epochs=1", "clip_gradient=3", "encoder_options={channels: [8, 8, 8, 8]}"]
    code, out, err = cli("train", flat, "--recipe", recipe, "--out", tmp_path / "words", *words)
    assert code == 0, err
    assert str(tmp_path / "words") in out
    carp.train(
        flat,
        tmp_path / "arguments",
        recipe,
        quiet=True,
        lr=(0.01, 0.001),
        epochs=1,
        clip_gradient=3.0,
        encoder_options={"channels": [8, 8, 8, 8]},
    )
    by_words, by_arguments = ((tmp_path / name / "config.yaml").read_text() for name in ("words", "arguments"))
    assert by_words == by_arguments
    # And the file that was written is itself a recipe for the same run.
    code, _, err = cli("train", flat, "--recipe", tmp_path / "words" / "config.yaml", "--out", tmp_path / "arguments")
    assert code == 0, err
    assert "finished" in err


def test_recipes_are_listed_with_their_first_line(cli: Cli) -> None:
    code, out, _ = cli("recipes")
    assert code == 0
    for name, line in list_recipes().items():
        assert re.search(rf"^{re.escape(name)} +{re.escape(line)}$", out, re.MULTILINE)


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_shown_with_its_comments(cli: Cli, name: str) -> None:
    code, out, _ = cli("recipes", name)
    assert code == 0
    assert out.startswith(f"# {list_recipes()[name]}")
    assert yaml.safe_load(out) == read_recipe(name)


def test_a_misspelt_recipe_or_setting_is_not_shown(cli: Cli) -> None:
    assert_one_line(cli("recipes", "foldr"), "'foldr'", "Did you mean 'folder'?")
    assert_one_line(cli("recipes", "mine.yaml"), "mine.yaml", "No such file")
    assert_one_line(cli("settings", "epoch"), "'epoch'", "Did you mean 'epochs'?")
    assert_one_line(cli("settings", "koleo"), "Did you mean 'koleo_weight' or 'koleo_distance'?")


def test_settings_are_shown_with_default_accepted_values_and_meaning(cli: Cli) -> None:
    code, out, _ = cli("settings")
    assert code == 0
    shown = re.findall(r"^  (\w+)=(.*?)   \((.+)\)\n      (.+)$", out, re.MULTILINE)
    assert [key for key, *_ in shown] == list(Config.model_fields)
    # What is shown as the default is accepted as a setting and is the default.
    assert resolve(parse_overrides([f"{key}={value}" for key, value, *_ in shown]), num_images=1) == Config()
    accepted = {key: words for key, _, words, _ in shown}
    assert accepted["epochs"] == "auto or whole number >= 1 and <= 1000000"
    assert accepted["micro_batch"] == "auto or whole number >= 2 and <= 16777216 or null"
    assert accepted["momentum"] == "number >= 0 and < 1"
    assert accepted["lr"] == "one number or [start, end], each >= 0 and <= 1000000"
    assert accepted["optimiser"] == "lars or sgd or adamw"
    assert accepted["compile"] == "true or false"
    code, one, _ = cli("settings", "lr")
    assert code == 0
    assert one.splitlines()[:2] == [f"lr=[0.6, 0.006]   ({accepted['lr']})", "    Learning rate; see lr_scaling."]


def test_one_setting_says_what_recipes_make_of_it(cli: Cli) -> None:
    _, out, _ = cli("settings", "lr")
    lines = [line.split(" in ") for line in out.splitlines()[2:]]
    said = {name: value for value, names in lines for name in names.split(", ")}
    written = {name: read_recipe(name).get("lr") for name in list_recipes()}
    assert {name: json.loads(value) for name, value in said.items()} == {n: v for n, v in written.items() if v}
    assert len(cli("settings", "threads")[1].splitlines()) == 2, "no recipe sets it"


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"carp {carp.__version__}\n", "")


def test_help_of_every_command(cli: Cli) -> None:
    for command in (["train"], ["eval"], ["demo"], ["recipes"], ["settings"], ["data"], ["data", "check"]):
        code, out, _ = cli(*command, "--help")
        assert code == 0
        assert "Usage" in out


def test_help_answers_at_once_and_without_torch() -> None:
    """The limit is in units of importing the libraries of the command line (0.2 s), as processors differ."""
    command = [sys.executable, "-m", "carp", "--help"]
    libraries = [sys.executable, "-c", "import pydantic, rich.console, typer"]
    pairs = [(processor_seconds(libraries)[0], processor_seconds(command)) for _ in range(3)]
    assert all("Usage: carp" in out for _, (_, out) in pairs)
    assert min(seconds for _, (seconds, _) in pairs) < 3.5 * min(seconds for seconds, _ in pairs)
    command[1:1] = ["-X", "importtime"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "carp.cli" in imported
    assert not {"torch", "timm", "torchvision"} & imported


def processor_seconds(command: list[str]) -> tuple[float, str]:
    """Run a command; return what a machine with nothing else to do would show on the clock, and the output."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def test_help_of_a_protocol_lists_its_settings_without_torch(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["eval"], ["eval", "knn"], ["eval", "detection"], ["eval", "all"]):
        command = [sys.executable, "-X", "importtime", "-m", "carp", *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "carp.evaluation.protocol" in imported
        assert not {"torch", "timm", "torchvision"} & imported, words
    monkeypatch.setenv("COLUMNS", "200")
    for protocol in all_protocols():
        code, out, _ = cli("eval", protocol.name, "--help")
        assert code == 0
        for key, field in protocol.settings_type.model_fields.items():
            assert f"--{key.replace('_', '-')} " in out, key
            assert field.description is not None
            assert field.description.split()[0] in out


def test_mistakes_that_need_no_torch_are_told_without_it(tmp_path: Path) -> None:
    for words in (
        ["eval", "kn", "run", "--data", "x"],
        ["eval", "knn", "run", "--data", "x", "kk=3"],
        ["eval", "knn", "run", "--data", "x", "--cached"],
        ["eval", "knn", str(tmp_path / "no"), "--data", "x"],
        ["eval", "knn", str(tmp_path), "--data", str(tmp_path / "no")],
        ["eval", "knn", str(tmp_path), "--data", str(tmp_path), "--test", "no"],
        ["embed", str(tmp_path / "no"), "--data", "x", "--out", "y"],
    ):
        command = [sys.executable, "-X", "importtime", "-m", "carp", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
        assert "carp: error: " in done.stderr
        assert "torch" not in imported, words


@pytest.mark.parametrize(
    ("words", "continues"),
    [(["eval", "knn", "RUN", "--data", "DATA"], True), (["embed", "RUN", "--data", "DATA", "--out", "x"], True),
     (["train", "DATA", "--dry-run"], False), (["table", "RUN"], False)],
)  # fmt: skip
def test_ctrl_c_says_whether_the_same_command_continues(
    cli: Cli, run: Path, labelled: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], continues: bool
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in (
        "evaluation.runner.run_protocols",
        "commands.embed.embed",
        "training.planning.dry_run.dry_run",
        "commands.table.table",
    ):
        monkeypatch.setattr(f"carp.{place}", interrupt)
    code, out, err = cli(*({"RUN": run, "DATA": labelled}.get(word, word) for word in words))
    assert (code, out) == (130, "")
    assert err.startswith("carp: interrupted.")
    assert err.count("\n") == 1
    assert ("same command" in err) == continues


def test_demo_trains_evaluates_and_says_where_everything_is(cli: Cli, tmp_path: Path) -> None:
    small = [f"{key}={json.dumps(TINY[key])}" for key in ("encoder_options", "projector_hidden", "embedding")]
    settings = ["epochs=1", "batch_size=256", "num_prototypes=64", "block_size=8", "stem_stride=4", *small]
    code, out, err = cli("demo", "--out", tmp_path / "demo", *settings)
    assert code == 0, err
    results = [json.loads(path.read_text()) for path in (tmp_path / "demo" / "results").glob("*.json")]
    values = {result["model"]["branch"]: result["values"]["top1@20"] for result in results}
    assert values.keys() == {"raw pixels", "untrained", "student", "teacher"}
    assert str(tmp_path / "demo") in out
    assert steps_of(tmp_path / "demo")
    assert read_yaml(tmp_path / "demo" / "config.yaml")["epochs"] == 1
    assert torch.isfinite(torch.tensor(list(values.values()))).all()
