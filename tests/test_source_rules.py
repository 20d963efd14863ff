"""Rules that the source itself must keep."""

import ast
import re
from collections import Counter
from pathlib import Path

import carp

SOURCE = Path(carp.__file__).parent


def test_nothing_in_the_source_unpickles_or_evaluates() -> None:
    forbidden = re.compile(
        r"\b(pickle|cPickle|dill|joblib|shelve|marshal)\b|torch\.load\(|\bnp\.load\(|allow_pickle|yaml\.(unsafe_)?load\("
        r"|\beval\(|\bexec\("
    )
    # The machine reads pickles without the library's unpickler, and detectron2's file is written as one
    ours = [path for path in SOURCE.rglob("*.py") if path.parent.name == "restricted"]
    files = [path for path in SOURCE.rglob("*.py") if path not in ours and path.name != "detectron2_file.py"]
    assert ours
    unpickles = re.compile(r"Unpickler\(|pickle\.loads?\(|torch\.load\((?!\'\{path\})")
    assert not [path for path in SOURCE.rglob("*.py") if unpickles.search(path.read_text())]
    assert len(files) > 30
    hits = [
        f"{path.name}:{number}: {line}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(
            re.sub(
                r"np\.load\([^)]*allow_pickle=False\)|without pickle|a published pickle|the pickle in"
                r"|torch\.load\([^)]*weights_only=True\)",
                "",
                line,
            )
        )
        and not re.search(r"\.eval\(\)|_eval\(|\bretrieval\(", line)
    ]
    assert not hits


def test_every_warning_is_one_that_the_command_line_shows() -> None:
    """The command line silences the warnings of libraries, so CARP's own must have their own class."""
    silent = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "warnings.warn"
        and "CarpWarning" not in ast.unparse(node)
    ]
    assert not silent


def modules() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path.name not in {"__init__.py", "__main__.py"}]


def test_no_module_name_is_used_twice() -> None:
    """A command, and its module of the command line, may be called as their subject is."""
    names = Counter(path.stem for path in modules() if path.parent.name not in {"commands", "cli"})
    assert not [name for name, count in names.items() if count > 1]


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """About a dozen modules. `commands` holds one module per command, however many there are."""
    sizes = Counter(path.parent for path in modules() if path.parent.name != "commands")
    assert not {folder.relative_to(SOURCE): size for folder, size in sizes.items() if size > 14}


def test_a_name_prefix_does_not_stand_in_for_a_package() -> None:
    families = Counter((path.parent, path.stem.partition("_")[0]) for path in modules() if "_" in path.stem)
    assert not [f"{folder.relative_to(SOURCE)}/{first}_*" for (folder, first), size in families.items() if size > 2]


def test_every_package_says_what_it_is_for() -> None:
    packages = [path for path in SOURCE.rglob("__init__.py") if any(path.parent.glob("[!_]*.py"))]
    assert not [path for path in packages if not ast.get_docstring(ast.parse(path.read_text()))]


def test_a_command_is_one_public_function() -> None:
    for path in (SOURCE / "commands").glob("[!_]*.py"):
        functions = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        assert {name for name in functions if not name.startswith("_")} == {path.stem}, path.name
