"""Manifests: a JSON file that completes a folder and holds the digests of its other files and of itself.

A feature store (`store.json`) and a search index (`index.json`) are such folders. The manifest is written last, so a
folder that has one is complete. Manifests of versions that wrote no digests can still be read.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from carp.errors import DataError
from carp.files.atomic import write_atomic
from carp.files.digests import digests_of, sha256_of_json

T = TypeVar("T")


@dataclass(frozen=True)
class Manifest:
    """A kind of manifest: its name, its version, and the remedies in its error messages."""

    name: str
    schema: int
    remedy: str
    """The remedy for a damaged folder, as a sentence; `{folder}` is its path."""
    content: str
    """The content of the folder, such as `features`."""
    command: str
    """The command that writes such a folder."""

    def write(self, folder: Path, content: Mapping[str, Any], files: Iterable[str]) -> None:
        """Complete a folder whose files are on the disk."""
        whole = {"schema": self.schema, **content, "files": {name: digests_of(folder / name) for name in files}}
        write_atomic(folder / self.name, json.dumps({**whole, "sha256": sha256_of_json(whole)}, indent=1))

    def read(self, folder: Path, parse: Callable[[dict[str, Any]], T]) -> T:
        """Read and verify the manifest, and nothing else.

        Args:
            folder: The folder that it completes.
            parse: Turns the content into the result; its `files` are empty if there are no digests. Any `ValueError`,
                `KeyError` or `TypeError` means that the manifest is damaged.
        """
        path, remedy = folder / self.name, self.remedy.format(folder=folder)
        try:
            found = json.loads(path.read_text())
            if found["schema"] != self.schema:
                raise DataError(
                    f"{path} has schema {found['schema']!r}, but this version of CARP reads schema {self.schema}. "
                    f"{remedy}"
                )
            if ("sha256" in found or "files" in found) and found.pop("sha256") != sha256_of_json(found):
                raise ValueError("its content does not match its digest")
            return parse({**found, "files": dict(found.get("files", {}))})
        except OSError as error:
            why = f"contains no {self.content} ({self.name}: {error.strerror})" if folder.exists() else "does not exist"
            raise DataError(f"{folder} {why}. Check the path, or run `{self.command}` first.") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            why = str(error) if type(error) is ValueError else type(error).__name__
            raise DataError(f"{path} is damaged ({why}). {remedy}") from None
