"""A new kind of source or a new protocol is one class; every command takes it, and no other code names it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pydantic import Field

import carp
from carp.errors import DataError
from carp.evaluation.labelled_features import LabelledFeatures
from carp.evaluation.protocol import Protocol, Settings
from carp.evaluation.result import Result
from carp.evaluation.workspace import Workspace
from carp.images.decoding.decode import Stored
from carp.images.open_source import open_source
from carp.images.source import Opening, Source, kinds_by_word
from tests.commands.conftest import Cli, assert_one_line, cli  # noqa: F401 - a fixture
from tests.helpers import write_recipe

SIDE = 32


class Stripes(Source):
    """`stripes:N` or a file that ends in .stripes and holds N: N images of vertical or horizontal stripes."""

    kind = "stripes"
    example = "stripes:NUMBER"
    suffixes = frozenset({".stripes"})
    label_remedy = "ask for stripes in two directions"

    def __init__(self, count: int) -> None:
        self.name, self.fingerprint, self._count = f"stripes:{count}", f"stripes {count}", count
        self.labels, self.classes = np.arange(count) % 2, ("vertical", "horizontal")

    @classmethod
    def open(cls, data: str, how: Opening) -> "Stripes":
        count = Path(data).read_text() if data.endswith(".stripes") else data
        how.progress(int(count), 0)
        return cls(int(count))

    def __len__(self) -> int:
        return self._count

    def fetch(self, index: int) -> Stored:
        bright = (np.arange(SIDE) + index) // 4 % 2 * 255
        pixels = np.broadcast_to(bright[None, :, None] if index % 2 else bright[:, None, None], (SIDE, SIDE, 3))
        return np.ascontiguousarray(pixels, dtype=np.uint8)

    def place(self, index: int) -> str:
        return f"{self.name}, number {index}"


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    return write_recipe(tmp_path / "tiny.yaml", epochs=1)


def test_a_new_source_is_checked_trained_on_and_evaluated(cli: Cli, recipe: Path, tmp_path: Path) -> None:  # noqa: F811
    code, out, err = cli("data", "check", "stripes:40", "--json", "--recipe", "small-images", "global_size=32")
    assert code == 0, err
    found = json.loads(out)
    assert (found["images"], found["classes"]) == (40, {"vertical": 20, "horizontal": 20})
    run = tmp_path / "run"
    code, _, err = cli("train", "stripes:40", "--recipe", recipe, "--out", run, "--val", "stripes:12")
    assert code == 0, err
    code, _, err = cli("eval", "knn", run, "--data", "stripes:40", "--test", "stripes:12", "k=3", "--out", tmp_path)
    assert code == 0, err


def test_a_new_source_is_known_by_its_suffix_and_by_its_word(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    file = tmp_path / "many.stripes"
    file.write_text("9")
    assert len(open_source(file)) == len(open_source(str(file), kind="stripes")) == 9
    assert carp.check_data("stripes:5", limit=2).images == 5
    assert "stripes" in cli("settings", "source")[1]
    assert_one_line(cli("data", "check", "strips:5"), "Did you mean 'stripes:5'?", "stripes:NUMBER")
    assert_one_line(cli("data", "check", "x", "source=strips"), "Did you mean 'stripes'?")


def test_two_kinds_cannot_share_a_word_and_each_must_be_openable() -> None:
    with pytest.raises(TypeError, match="kind 'stripes'"):
        type("Other", (Stripes,), {"kind": "stripes"})
    with pytest.raises(TypeError, match="open"):
        type("Closed", (Source,), {"kind": "closed"})
    assert kinds_by_word()["stripes"] is Stripes


def test_an_object_of_ones_own_needs_only_a_length_fetch_and_place() -> None:
    class Own:
        classes = ("a", "b")
        labels = np.array([0, 1, 1])

        def __len__(self) -> int:
            return 3

        def fetch(self, index: int) -> Stored:
            return np.full((8, 8, 3), index, dtype=np.uint8)

        def place(self, index: int) -> str:
            return f"own {index}"

    source = open_source(Own())
    assert (source.name, source.classes, source.groups, list(source.notes)) == ("Own", ("a", "b"), None, [])
    assert source.fingerprint == open_source(Own()).fingerprint
    assert [source.fetch(i)[0, 0, 0] for i in range(3)] == [0, 1, 2]
    assert carp.check_data(Own(), global_size=32).found.classes == {"a": 1, "b": 2}
    with pytest.raises(DataError, match="images from a int"):
        open_source(5)  # type: ignore[arg-type]


class MajoritySettings(Settings):
    """Settings of `carp eval majority`."""

    classes: int = Field(1, ge=1, description="How many of the most frequent classes count as right.")


class Majority(Protocol[MajoritySettings]):
    """Predicts the most frequent class, whatever the features."""

    name, title, summary = "majority", "Majority", "Predict the most frequent class."
    settings_type = MajoritySettings

    def run(self, data: LabelledFeatures, test: LabelledFeatures, work: Workspace) -> Result:
        assert work.encoder is not None
        frequent = np.argsort(-np.bincount(data.labels), kind="stable")[: self.settings.classes]
        share = float(np.isin(test.labels, frequent).mean())
        return Result(values={"top1": share}, settings=self.settings.model_dump())

    def notes(self, result: Result) -> list[str]:
        return [f"majority of {result.model_name}: {result.values['top1']:.0%}"]


def test_a_new_protocol_is_a_sub_command_a_function_and_a_column(
    cli: Cli,  # noqa: F811
    recipe: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    assert cli("train", "stripes:40", "--recipe", recipe, "--out", run)[0] == 0
    assert "Predict the most frequent class." in cli("eval", "--help")[1]
    assert "--classes" in cli("eval", "majority", "--help")[1]
    words = ["eval", "majority", run, "--data", "stripes:40", "--test", "stripes:11", "--branch", "teacher"]
    for more in (["--classes", 2], ["classes=2"]):
        code, out, err = cli(*words, *more)
        assert code == 0, err
        assert "Majority, top-1" in out
        assert "note: majority of teacher: 100%" in err
    (path,) = (run / "results").glob("majority-*.json")
    assert json.loads(path.read_text())["settings"]["classes"] == 2
    assert carp.evaluate("majority", run, "stripes:40", test="stripes:11").values == {"top1": 6 / 11}
    assert "Majority" in cli("table", path)[1]
    assert_one_line(cli(*words, "clases=2"), "Did you mean 'classes'?")
    assert_one_line(cli(*words, "--classes", 0), "classes must be", "received '0'")
    assert_one_line(cli("eval", "mayority", run, "--data", "stripes:40"), "Did you mean 'majority'?")
