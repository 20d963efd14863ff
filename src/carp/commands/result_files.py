"""Where results are written, and under which name."""

import hashlib
import json
import re
from pathlib import Path

from carp.errors import DataError
from carp.evaluation.result import Result
from carp.report.tables.columns import OWN, name_of_data

RESULTS = "results"


def write_result(result: Result, folder: Path) -> None:
    """Write a result into the sub-folder `results`, under a name that says what it is; other settings, other name."""
    kept = (result.settings, result.data["fingerprints"], result.model.get("hash"))
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:8]
    data = name_of_data(result.data).removesuffix(OWN).strip()
    words = (data, result.model.get("branch", ""), digest)
    name = "-".join([result.protocol, *(re.sub(r"[^\w.+%]+", "_", word) for word in words if word)])
    try:
        result.write(folder / RESULTS / f"{name}.json")
    except OSError as error:
        raise DataError(f"cannot write results to {folder / RESULTS}: {error.strerror or error}.") from error
