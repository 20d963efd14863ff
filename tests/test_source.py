"""Rules that the source itself must keep."""

import ast
import re
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
