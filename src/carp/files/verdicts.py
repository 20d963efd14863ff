"""Verdicts on files that CARP wrote, for `carp check`. The package that writes a kind of file also checks it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from carp.errors import DataError

Verdict = Literal["ok", "readable", "unfinished", "damaged"]
Checked = tuple[Path, Verdict, str]  # a file, the verdict, a detail
NO_DIGEST = "written by a version without digests: only its form was checked"


def judge(path: Path, check: Callable[[], object], sound: Verdict = "ok", detail: str = "") -> Checked:
    """Return the verdict of a function that raises if the file is damaged; `sound` if it does not raise."""
    try:
        check()
    except Exception as error:  # a damaged file can fail in any way inside its reader
        text = " ".join(str(error).split()) or type(error).__name__
        return path, "damaged", text.removeprefix(f"{path} is damaged: ")
    return path, sound, detail


def judge_complete(
    manifest: Path, read: Callable[[], tuple[bool, Mapping[str, Callable[[], object]]]]
) -> Iterator[Checked]:
    """Yield verdicts on a manifest and the files that it completes.

    Args:
        manifest: The manifest.
        read: Reads it, and returns whether it holds digests, and one check per file.
    """
    try:
        has_digests, checks = read()
    except DataError as error:
        yield manifest, "damaged", str(error)
        return
    sound: Verdict = "ok" if has_digests else "readable"
    detail = "" if has_digests else NO_DIGEST
    yield manifest, sound, detail
    for name, check in checks.items():
        yield judge(manifest.parent / name, check, sound, detail)
