"""One input of the fuzzer: the files to write, the command that reads them, and what came of it."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

BUDGET = 2**30
"""Bytes that a command on a small input may use above the interpreter with its libraries."""

IN, OUT = "in", "out"  # in the folder of a case: what a command reads, and the only place where it may write


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int
    """Exit code; negative: the signal that ended it."""
    stdout: str
    stderr: str
    events: list[str]
    """What it must not do and did: writes outside of `out`, programs, sockets, the canary."""
    seconds: float
    """Of processor time."""
    peak_bytes: int
    """Largest resident memory above that of the interpreter before the command."""


Check = Callable[[Outcome, Path], str | None]


@dataclass(frozen=True)
class Case:
    """`carp words…` in a folder that holds `files`."""

    words: tuple[str, ...]
    files: Mapping[str, bytes | Path] = field(default_factory=dict)
    """Contents by name below the folder; a path is copied, a file or a whole folder."""
    note: str = ""
    """How the input was made."""
    prepare: Callable[[Path], None] | None = None
    """Makes what is not a plain file: pipes, links, holes."""
    check: Check | None = None
    """Says what is wrong with an outcome, beyond what is wrong for every command."""
    codes: frozenset[int] = frozenset({0, 2})
    budget: int = BUDGET
    """Bytes of memory; more is a fault."""

    def write(self, folder: Path) -> None:
        """Make the folder of the case; copies come first, so that single files replace parts of them."""
        (folder / IN).mkdir(parents=True)
        (folder / OUT).mkdir()
        for name, content in sorted(self.files.items(), key=lambda item: isinstance(item[1], bytes)):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content.is_dir():
                shutil.copytree(content, path, dirs_exist_ok=True)
            else:
                shutil.copyfile(content, path)
        if self.prepare is not None:
            self.prepare(folder)


Target = Callable[[Random], Case]
