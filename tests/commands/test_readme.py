"""The README and the pages in docs/ work as written, on small images and with settings that make them quick."""

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from carp.config import check_keys
from carp.config.recipe import parse_overrides
from carp.evaluation.protocols import all_protocols
from tests.commands.conftest import Cli
from tests.commands.paper_root import shrink_rows, write_root
from tests.commands.test_detection import SMALL
from tests.evaluation.voc_tree import write_voc
from tests.helpers import TINY, tiny_images, write_images

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/tasks").glob("*.md")),
]
WITH_COMMANDS = ["README.md", "docs/training.md", "docs/evaluation.md", "docs/search.md", "docs/tasks/photos.md"]
WITH_PYTHON = ["README.md", "docs/python.md"]
QUICK = {**TINY, "epochs": 1}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    lines = "".join(blocks(page, "sh")).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with everything that the pages name."""
    monkeypatch.chdir(tmp_path)
    write_voc(tmp_path / "VOC_ROOT")
    for name, classes in [("PHOTOS", 0), ("ICONS", 0), ("LABELLED", 3), ("cifar10/train", 2), ("cifar10/test", 2)]:
        write_images(tmp_path / name, tiny_images(), classes=classes)
    write_root(tmp_path / "DATASETS")
    shrink_rows(monkeypatch)
    write_images(tmp_path, tiny_images(2))
    for i, name in enumerate(("a.jpg", "b.jpg")):
        (tmp_path / f"{i:03d}.png").rename(name)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in ("docs/training.md", "docs/evaluation.md") else [])
        for page in WITH_COMMANDS
    ],
)
def test_every_command_runs(page: str, cli: Cli, images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carp.Explorer, "wait", carp.Explorer.close)  # nobody presses Ctrl-C here
    quick = [f"{key}={json.dumps(value)}" for key, value in QUICK.items()]
    if page in ("docs/search.md", "docs/evaluation.md"):  # their runs exist already
        for data, out in (("PHOTOS", "runs/photos"), ("cifar10/train", "runs/cifar")):
            carp.train(data, out, quiet=True, **QUICK)
    ran = set()
    for program, *words in commands(page):
        if program == "carp":
            more = quick if words[0] == "train" else SMALL if words[:2] == ["eval", "detection"] else []
            if "--from" in words:  # the encoder follows from the weights
                more = [setting for setting in more if not setting.startswith(("encoder", "stem"))]
            code, _, err = cli(*words, *more)
            assert code == 0, f"{words}: {err}"
            ran.add(words[0])
        elif program == "make":
            assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        elif program == "pip":
            assert words[0] == "install"
            check_extras(words[1])
        else:
            assert program == "mkdir", program  # moves files aside with xargs, which only GNU has
    assert len(ran) > 2


def check_extras(requirement: str) -> None:
    """A requirement such as '.[eval,log]' names extras that exist."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = re.fullmatch(r"(?:\.|carp-ssl)(?:\[([\w,]+)\])?", requirement)
    assert extras, requirement
    assert not extras[1] or set(extras[1].split(",")) <= known.keys(), requirement


def test_extras_in_the_text_exist() -> None:
    found = [extras for page in PAGES for extras in re.findall(r"pip install '([^']+)'", page.read_text())]
    assert found
    for requirement in found:
        check_extras(requirement)


def test_settings_of_the_commands_are_valid_as_written() -> None:
    pages = [*WITH_COMMANDS, "docs/messy-data.md"]
    words = [word for page in pages for command in commands(page) for word in command if re.match(r"\w+=", word)]
    inline = [text for page in pages for text in re.findall(r"`(\w+=[^`]+)`", (ROOT / page).read_text())]
    inline = [text for text in inline if text not in ("key=value", "OMP_NUM_THREADS=1")]
    assert words
    assert inline
    models = [protocol.settings_type for protocol in all_protocols()]
    for text in (*words, *inline):
        overrides = parse_overrides(text.split())
        if not any(model(**overrides) for model in models if overrides.keys() <= model.model_fields.keys()):
            check_keys(overrides)


def test_every_command_in_the_text_exists(cli: Cli) -> None:
    command = re.compile(r"`carp ((?:data|eval) [a-z]+[a-z-]*|[a-z]+)")
    found = {words for page in PAGES for words in command.findall(page.read_text())}
    assert len(found) > 10
    for words in found:
        assert cli(*words.split(), "--help")[0] == 0, words


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_runs(page: str, images: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train = carp.train

    def quickly(*arguments: Any, **settings: Any) -> carp.Run:
        check_keys(settings)
        return train(*arguments, quiet=True, **{**settings, **QUICK})

    monkeypatch.setattr(carp, "train", quickly)
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    assert names["vectors"].shape == (2, TINY["encoder_options"]["channels"][-1])
    assert names["vectors"].dtype == np.float32
    assert "top1@20" in names["result"].values
    if page == "docs/python.md":
        assert len(names["store"].features) == 64
        assert names["built"].kind == "exact"
        assert [len(names["found"].matches), names["verified"].ok] == [5, True]
        assert "k-NN LABELLED top-1" in Path("photos.md").read_text()
        assert names["z1"].requires_grad
        assert names["prototypes"].grad is not None


def test_the_training_loop_trains() -> None:
    names: dict[str, Any] = {}
    (block,) = blocks("docs/tasks/own-loop.md", "python")
    exec(compile(block, "own-loop.md", "exec"), names)
    student, teacher = (names[name].prototypes for name in ("student", "teacher"))
    assert student.grad.abs().sum() > 0
    assert 0 < (student - teacher).abs().max() < 0.01


def test_the_page_on_python_names_every_function() -> None:
    text = (ROOT / "docs/python.md").read_text()
    functions = [name for name in carp.__all__ if name[0].islower()]
    assert len(functions) > 15
    for name in functions:
        assert f"carp.{name}" in text, name


def test_the_tree_lists_every_package_and_nothing_else() -> None:
    tree = (ROOT / "README.md").read_text().partition("    src/carp/\n")[2].partition("    benchmarks/")[0]
    listed = set(re.findall(r"\b(\w+)/", tree))
    packages = {path.parent.name for path in (ROOT / "src" / "carp").rglob("__init__.py")} - {"carp"}
    assert listed == packages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for target, anchor in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", text):
        linked = page.parent / target if target else page
        assert target.startswith("https://") or linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target}{anchor}"


def test_files_in_the_text_exist() -> None:
    texts = {page: page.read_text() for page in PAGES}
    named = {
        (page.name, path)
        for page, text in texts.items()
        for path in re.findall(r"`((?:src/carp|tests|benchmarks|docs)/[\w/.-]+)`", text)
    }
    packages = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    scripts = {
        (page.name, f"benchmarks/{name}/__main__.py" if name in packages else f"benchmarks/{name}.py")
        for page, text in texts.items()
        for name in re.findall(r"python -m benchmarks\.(\w+)", text)
    }
    assert named
    assert scripts
    for page, path in named | scripts:
        assert (ROOT / path).exists(), f"{page} names {path}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
