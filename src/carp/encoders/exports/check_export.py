"""Verify what `carp export` wrote, for `carp check`."""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from carp.encoders.exports.formats import FORMATS
from carp.encoders.layers import tensors_hash
from carp.encoders.read_export import MARK
from carp.errors import DataError
from carp.files.verdicts import NO_DIGEST, Checked, judge

_SEARCHED = 2**16  # bytes


def is_export_folder(path: Path) -> bool:
    """Return whether a folder is an export for timm."""
    folders = [export_format for export_format in FORMATS if not export_format.suffix]
    return (path / "config.json").is_file() and any(export_format.is_carp_file(path) for export_format in folders)


def check_export_folder(folder: Path) -> Iterator[Checked]:
    """Verify an export for timm."""
    about = json.loads((folder / "config.json").read_text())[MARK]
    yield folder / "config.json", "readable", ""
    yield _check_tensors(folder / "model.safetensors", about)


def check_export_file(path: Path) -> Iterator[Checked]:
    """Verify an exported file; yield nothing if CARP did not write it."""
    ours = (f for f in FORMATS if f.suffix and f.suffix == path.suffix and f.is_carp_file(path))
    export_format = next(ours, None)
    if export_format is None:
        if _is_broken_export(path):
            yield path, "damaged", "`carp export` wrote it, but it cannot be read. Export the encoder again"
    elif export_format.name == "safetensors":
        yield _check_tensors(path, json.loads(_about_in(path)))
    elif export_format.name == "torchvision":
        yield judge(path, lambda: _check_zip(path))
    else:
        yield path, "readable", f"{export_format.name} files have no digest: export again if in doubt"


def _check_tensors(path: Path, about: dict[str, Any]) -> Checked:
    expected = about.get("tensors_sha256")

    def check() -> None:
        if tensors_hash(load_file(path)) != expected is not None:
            raise DataError("its tensors do not match their digest")

    return judge(path, check, "ok" if expected else "readable", "" if expected else NO_DIGEST)


def _about_in(path: Path) -> str:
    with safe_open(path, framework="pt") as file:
        return str(file.metadata()[MARK])


def _is_broken_export(path: Path) -> bool:
    """Return whether a file that no reader accepts as an export has CARP's mark near its beginning or its end."""
    if path.suffix not in {export_format.suffix for export_format in FORMATS if export_format.suffix}:
        return False
    with path.open("rb") as file:
        head = file.read(_SEARCHED)
        file.seek(max(0, path.stat().st_size - _SEARCHED))
        return any(b"written_by" in part and b"CARP " in part for part in (head, file.read()))


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise DataError(f"{damaged} inside it does not match its checksum")
