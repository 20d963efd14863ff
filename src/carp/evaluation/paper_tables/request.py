"""The request behind an evaluation. Result files record it, so that the same evaluation need not run twice."""

from pathlib import Path
from typing import Any

from carp.errors import CarpError
from carp.evaluation.protocol import OPTIONS, AnyProtocol
from carp.evaluation.result import Result, read_result
from carp.features.feature_options import FeatureOptions
from carp.files.atomic import is_unfinished

_WITHOUT_EFFECT = frozenset({"root", "download", "device"})  # on the values


def request_of(protocol: AnyProtocol, data: object, test: object, options: FeatureOptions) -> dict[str, Any]:
    """Describe an evaluation by its arguments; empty if the images were Python objects, which have no name."""
    if not all(part is None or isinstance(part, str | Path) for part in (data, test)):
        return {}
    used = set(OPTIONS[protocol.needs]) - _WITHOUT_EFFECT
    return {
        "data": str(data),
        "test": None if test is None else str(test),
        "settings": protocol.settings.model_dump(mode="json", exclude={"preset"}),  # it only stands for other settings
        "options": options.model_dump(mode="json", include=used),
    }


class FinishedResults:
    """The results in a folder; files that cannot be read do not count."""

    def __init__(self, folder: Path) -> None:
        self._results = []
        for path in sorted(folder.glob("*.json")):
            if not is_unfinished(path):
                try:
                    self._results.append(read_result(path))
                except CarpError:
                    continue

    def find(self, protocol: str, request: dict[str, Any], weights_hash: str) -> Result | None:
        """Return the newest result of this protocol for this request and these weights."""
        found = [
            result
            for result in self._results
            if (result.protocol, result.request, result.model.get("hash")) == (protocol, request, weights_hash)
        ]
        return max(found, key=lambda result: result.created, default=None)
