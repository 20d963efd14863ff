"""The table of faults in the documentation names tests that exist."""

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_every_row_names_its_tests() -> None:
    text = (FOLDER.parents[1] / "docs" / "messy-data.md").read_text()
    section = text.split("### When a server fails")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    names = " ".join(re.findall(r"def (test_\w+)", "".join(path.read_text() for path in FOLDER.glob("test_*.py"))))
    assert len(rows) > 10
    for fault, _, tests in rows:
        assert all(part in names for part in re.findall(r"`(\w+)`", tests)), fault
        assert "`" in tests, fault
