"""What the README shows works as written, on small images and with settings that make it quick."""

import json
import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from carp.commands.protocols import OF_ALL, find_protocol
from carp.config import check_keys
from carp.config.recipe import parse_overrides
from carp.evaluation.protocols import check_settings
from tests.commands.conftest import Cli
from tests.commands.test_detection import SMALL
from tests.evaluation.voc_tree import write_voc
from tests.helpers import TINY, tiny_images, write_images

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
QUICK = {**TINY, "epochs": 1}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    lines = "".join(blocks("sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with everything that the README names."""
    monkeypatch.chdir(tmp_path)
    for name, classes in [("PHOTOS", 0), ("ICONS", 0), ("LABELLED", 3), ("cifar10/train", 2), ("cifar10/test", 2)]:
        write_images(tmp_path / name, tiny_images(), classes=classes)
    write_voc(tmp_path / "VOC_ROOT")
    write_images(tmp_path, tiny_images(2))
    for i, name in enumerate(("a.jpg", "b.jpg")):
        (tmp_path / f"{i:03d}.png").rename(name)


def test_every_command_runs(cli: Cli, images: None) -> None:
    quick = [f"{key}={json.dumps(value)}" for key, value in QUICK.items()]
    ran = set()
    for program, *words in commands():
        if program == "carp":
            more = quick if words[0] == "train" else SMALL if words[:2] == ["eval", "detection"] else []
            code, _, err = cli(*words, *more)
            assert code == 0, f"{words}: {err}"
            ran.add(words[0])
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        else:
            assert (program, *words) == ("pip", "install", ".")
    assert {"train", "eval", "settings", "recipes", "views"} <= ran


def test_settings_of_the_commands_are_valid_as_written() -> None:
    words = [word for command in commands() for word in command if re.match(r"\w+=", word)]
    inline = [word for word in re.findall(r"`(\w+=[^`]+)`", README) if word != "key=value"]
    assert words
    assert inline
    protocols = {key: name for name in OF_ALL for key in find_protocol(name).settings()}
    for text in (*words, *inline):
        overrides = parse_overrides(text.split())
        ours = {key: value for key, value in overrides.items() if key in protocols}
        for key, value in ours.items():
            check_settings(protocols[key], find_protocol(protocols[key]).load(), {key: value})
        check_keys({key: value for key, value in overrides.items() if key not in ours})


def test_every_command_in_the_text_exists(cli: Cli) -> None:
    found = {words.split()[1] for words in re.findall(r"`(carp \w[^`]*)`", README)}
    assert found
    for name in found:
        assert cli(name, "--help")[0] == 0, name


def test_the_python_runs(images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train = carp.train

    def quickly(*arguments: Any, **settings: Any) -> carp.Run:
        check_keys(settings)
        return train(*arguments, quiet=True, **{**settings, **QUICK})

    monkeypatch.setattr(carp, "train", quickly)
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["vectors"].shape == (2, TINY["encoder_options"]["channels"][-1])
    assert names["vectors"].dtype == np.float32
    assert "top1@20" in names["result"].values
    assert len(names["store"].features) == 64
    assert names["z1"].requires_grad
    assert names["prototypes"].grad is not None


def test_the_tree_names_files_that_exist_and_leaves_none_out() -> None:
    tree = README.partition("## The files are the architecture\n")[2].partition("\n\n")[0]
    folders, named = {0: ROOT}, set()
    for line in tree.splitlines():
        indent = len(line) - len(line.lstrip())
        parent = folders[max(i for i in folders if i < indent)]
        for name in takewhile(lambda word: word.endswith((".py", "/")), line.split()):
            assert (parent / name).exists(), f"{parent / name} is in the README only"
            named.add(parent / name)
            folders = {i: folder for i, folder in folders.items() if i < indent} | {indent: parent / name}
    for folder in ("data", "model", "training", "features"):
        for path in (ROOT / "src" / "carp" / folder).glob("[!_]*.py"):
            assert path in named, f"{path} is not in the README"


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
