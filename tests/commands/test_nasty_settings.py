"""Every setting with every nasty value, through the real path: accepted and buildable, or one line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from carp.config import Config
from carp.config.recipe import parse_overrides, read_yaml, to_yaml
from carp.console.progress import Display
from carp.errors import CarpError
from carp.training.planning.estimate import estimate
from carp.training.preparation import open_for_training
from carp.training.schedules import Schedules
from tests.commands.conftest import Cli, assert_one_line
from tests.helpers import TINY, tiny_images

VALUES = [
    "",
    "null",
    "auto",
    "nan",
    ".nan",
    ".inf",
    "-.inf",
    "-1",
    "0",
    "1",
    "0.5",
    "1e308",
    "-1e308",
    "1.0e+308",
    "2147483648",
    "9223372036854775808",
    "1" * 30,
    "1" * 4000,
    "1" * 5000,
    "true",
    "[]",
    "[1, 2, 3, 4, 5]",
    "[.nan, .inf]",
    "{a: 1}",
    "{1: 2, null: 3}",
    "\x1b[2J",
    "\udcff",
    "🙂",
    "a" * 100_000,
    "[" * 10_000,
    "[" * 500 + "]" * 500,
    "2024-99-99",
    "!!int x",
    "*unknown",
    "&a [*a]",
]


def parse(value: str) -> Any:
    """The value as the command line reads it, which does not depend on the setting; the error if it is refused."""
    try:
        return parse_overrides([f"lr={value}"])["lr"]
    except CarpError as error:
        return error


@pytest.fixture(scope="module")
def parsed() -> list[Any]:
    """Every value, parsed once: texts of a hundred thousand characters take their time."""
    values = [parse(value) for value in VALUES]
    errors = [str(value) for value in values if isinstance(value, CarpError)]
    assert errors
    assert not [error for error in errors if "\n" in error or len(error) >= 2000]
    return [value for value in values if not isinstance(value, CarpError)]


def build(settings: dict[str, Any]) -> str:
    """What `carp train` does before it allocates; returns the message if it is refused."""
    try:
        config, source, _ = open_for_training(tiny_images(64), None, {**TINY, **settings}, Display(quiet=True))
        assert estimate(config).total_bytes > 0
        schedules = Schedules(config, max(1, len(source) // config.batch_size))
        assert all(math.isfinite(x) for x in (schedules.num_steps, config.base_lr))
        assert Config.model_validate(config.model_dump()) == config
        to_yaml(config)
    except CarpError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", [key for key in Config.model_fields if key != "download"])
def test_every_setting_is_refused_in_one_line_or_works(parsed: list[Any], key: str) -> None:
    for value in parsed:
        message = build({key: value})
        assert "\n" not in message
        assert len(message) < 2000, message
    annotation = str(Config.model_fields[key].annotation)
    if "int" in annotation or "float" in annotation:
        for value in ("-1", ".nan", "1" * 30, "1e308", "a"):
            assert key in build({key: parse(value)}), f"{key}={value} was accepted"


@pytest.mark.parametrize(
    "setting",
    ["projector_hidden=2147483648", f"global_size={'1' * 30}", "lr=1e308", "timeout_minutes=1e308", "embedding=0"],
)
def test_numbers_out_of_range_are_one_line_with_the_range(cli: Cli, tmp_path: Path, flat: Path, setting: str) -> None:
    assert_one_line(cli("train", flat, setting, "--out", tmp_path / "run"), setting.partition("=")[0])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "options",
    [
        "{block: unknown}",
        "{block: 3}",
        "{in_chans: -1}",
        "{no_such_option: 1}",
        "{layers: {}}",
        "{features_only: true}",
    ],
)
def test_options_that_timm_cannot_use_are_one_line(cli: Cli, tmp_path: Path, flat: Path, options: str) -> None:
    assert_one_line(cli("train", flat, f"encoder_options={options}", "--out", tmp_path / "run"), "encoder")


def test_a_size_that_the_encoder_cannot_take_is_one_line(cli: Cli, tmp_path: Path, flat: Path) -> None:
    words = ("train", flat, "encoder=vit_tiny_patch16_224", "global_size=100", "--out", tmp_path / "run")
    assert_one_line(cli(*words), "multiple of 16", "received 100", "96 or 112")


YAML = {
    "nested": "a: " + "[" * 10_000,
    "closed": "lr: " + "[" * 3000 + "]" * 3000,
    "digits": "epochs: " + "1" * 5000,
    "number": "1: 2",
    "null": "null: 2",
    "list key": "? [a, b]\n: 1",
    "date": "epochs: 2024-99-99",
    "binary": "epochs: !!binary x",
    "tag": "epochs: !!python/object/apply:os.system [true]",
    "bomb": "a: &a [x, x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(20)),
    "bytes": "\udcff",
}


@pytest.mark.parametrize("kind", YAML)
def test_any_yaml_is_one_line(cli: Cli, tmp_path: Path, flat: Path, kind: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(YAML[kind].encode("utf-8", "surrogateescape"))
    assert_one_line(cli("train", flat, "--recipe", path, "--out", tmp_path / "run"))
    with pytest.raises(CarpError):
        open_for_training(tiny_images(4), path, {}, Display(quiet=True))
    read: dict[str, Any] | None = None
    try:
        read = read_yaml(path)
    except CarpError as error:
        assert len(str(error)) < 1000
        assert "sys." not in str(error), "advice that no user of the command can follow"
    assert read is None or all(isinstance(key, str) for key in read)


def test_a_large_configuration_is_one_line(cli: Cli, tmp_path: Path, flat: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"# " + b"x" * (2 << 20))
    assert_one_line(cli("train", flat, "--recipe", path, "--out", tmp_path / "run"), "2.0 MiB")


@pytest.mark.parametrize("name", ["list.csv", "list.tsv"])
def test_a_field_of_more_characters_than_csv_allows_is_one_line(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("path\n" + "a" * 200_000 + ".jpg\n")
    assert_one_line(cli("train", tmp_path / name, "--out", tmp_path / "run"), "line 2", "131072")


def test_a_relevance_file_with_such_a_field_is_one_line(cli: Cli, tmp_path: Path, flat: Path, run: Path) -> None:
    (tmp_path / "truth.csv").write_text("a" * 200_000 + ",b\n")
    words = ("eval", "retrieval", run, "--data", flat, "--queries", flat, "--truth", tmp_path / "truth.csv")
    assert_one_line(cli(*words, "--out", tmp_path / "out"), "131072")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, json.dumps([1])])
def test_a_result_file_of_a_hundred_thousand_brackets_is_one_line(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert_one_line(cli("table", tmp_path / "a.json"), "not a result file")


def test_devices_that_cannot_compute_are_refused() -> None:
    for name in ("meta", "cpu:x", "🙂", "vulkan"):
        assert "device" in build({"device": name})
    assert build({"device": "cpu"}) == ""
