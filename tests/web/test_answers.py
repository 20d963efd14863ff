"""What the page is told: neighbours, maps, clusters, comparisons, selections; and mistakes as one line."""

import csv
import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carp.errors import DataError
from carp.web.answers import Answers
from carp.web.background import Background
from carp.web.chosen_images import as_text, save
from carp.web.picture_cache import PictureCache
from tests.web.conftest import COUNT, HOST, TOKEN, Ask

POSTED = {"origin": f"http://{HOST}"}


def until_done(ask: Ask, path: str) -> Any:
    """The answer, once the work behind it is done."""
    for _ in range(600):
        answer = ask("GET", f"/{TOKEN}/{path}")
        found = json.loads(answer.body) if answer.headers["content-type"] == "application/json" else answer.body
        if isinstance(found, bytes) or "working" not in found or found["working"] is None:
            return found
        time.sleep(0.05)
    raise AssertionError(path)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_neighbours_are_the_nearest_others_in_every_space(ask: Ask, answers: Answers) -> None:
    found = json.loads(ask("GET", f"/{TOKEN}/neighbours/3").body)
    assert found["query"]["name"] == "class-0/008.png"
    assert found["query"]["label"] == "class-0"
    lists = []
    for space, shown in zip(answers.spaces, found["lists"], strict=True):
        cosines = unit(space.features) @ unit(space.features)[3]
        cosines[3] = -2
        expected = np.argsort(-cosines)[:24]
        assert [image["row"] for image in shown["images"]] == expected.tolist()
        assert [image["value"] for image in shown["images"]] == pytest.approx(cosines[expected], abs=1e-3)
        lists.append(set(expected.tolist()))
    for number, shown in enumerate(found["lists"]):
        assert all(image["kept"] == (image["row"] in lists[1 - number]) for image in shown["images"])


def test_names_are_text_that_shows_every_character(ask: Ask) -> None:
    names = [json.loads(ask("GET", f"/{TOKEN}/image/{row}").body)["name"] for row in range(COUNT)]
    assert "class-0/<img src=x onerror=alert(1)>.png" in names


def test_the_map_starts_with_principal_components_and_ends_with_t_sne(ask: Ask, answers: Answers) -> None:
    pytest.importorskip("openTSNE")
    first = json.loads(ask("GET", f"/{TOKEN}/map/1").body)
    assert (first["version"], first["method"]) == (0, "principal components")
    quick = np.frombuffer(ask("GET", f"/{TOKEN}/points/1/0").body, dtype="<i2")
    assert quick.shape == (2 * COUNT,)
    assert np.abs(quick).max() == 32767
    last = until_done(ask, "map/1")
    assert (last["version"], last["method"]) == (1, "t-SNE")
    assert not np.array_equal(np.frombuffer(ask("GET", f"/{TOKEN}/points/1/1").body, dtype="<i2"), quick)


def test_clusters_of_any_number(ask: Ask) -> None:
    found = until_done(ask, "clusters/0/2")
    assert sorted(card["size"] for card in found["cards"]) == [20, 20]
    assert found["titles"] == [card["title"] for card in found["cards"]]
    own = np.frombuffer(until_done(ask, "clusters/0/2/own"), dtype="<i4")
    certainty = np.frombuffer(until_done(ask, "clusters/0/2/certainty"), dtype="<f4")
    assert len(np.unique(own[:20])) == len(np.unique(own[20:])) == 1
    assert certainty.min() >= 0
    typical = found["cards"][own[0]]["images"]
    assert all(image["row"] < 20 for image in typical)
    listed = until_done(ask, f"clusters/0/2/one/{own[0]}/0")
    assert listed["count"] == 20
    assert [image["row"] for image in listed["images"]][:8] == [image["row"] for image in typical]
    assert until_done(ask, f"clusters/0/2/one/{own[0]}/15")["images"] == listed["images"][15:]
    assert "there is no cluster 3" in until_done(ask, "clusters/0/2/one/2/0")["error"]


def test_encoders_are_compared_by_the_neighbours_they_share(ask: Ask) -> None:
    found = until_done(ask, "comparison")
    kept = np.frombuffer(until_done(ask, "comparison/kept"), dtype="<f4")
    assert found["compared"] == COUNT
    assert found["mean"] == pytest.approx(kept.mean(), abs=1e-3)
    assert [image["value"] for image in found["least"]] == sorted(image["value"] for image in found["least"])


def test_copies_are_groups_side_by_side(ask: Ask, answers: Answers) -> None:
    features = np.array(answers.spaces[0].features)
    features[7] = features[21]
    answers.spaces[0].features = features
    found = until_done(ask, "copies/0")
    assert any({image["row"] for image in group["images"]} >= {7, 21} for group in found["groups"])


def test_what_is_missing_is_one_line(ask: Ask) -> None:
    assert "prototypes belong to a run" in until_done(ask, "prototypes/0")["error"]
    answer = ask("POST", f"/{TOKEN}/search", POSTED, b"not an image")
    assert "encoder" in json.loads(answer.body)["error"]


def test_a_selection_is_a_csv_file_that_labels_read_or_a_list(ask: Ask, answers: Answers) -> None:
    rows = np.array([0, 39, 5], dtype="<u4").tobytes()
    text = ask("POST", f"/{TOKEN}/selection/csv", POSTED, rows).body.decode()
    places = [answers.images.place(row) for row in (0, 39, 5)]
    expected = [[place, label] for place, label in zip(places, ["class-0", "class-1", "class-0"], strict=True)]
    assert list(csv.reader(io.StringIO(text))) == [["image", "label"], *expected]
    listed = ask("POST", f"/{TOKEN}/selection/list", POSTED, rows).body.decode()
    assert listed.splitlines() == places
    labelled = ask("POST", f"/{TOKEN}/selection/csv", {**POSTED, "x-label": "two%20words"}, rows).body.decode()
    assert [row[1] for row in csv.reader(io.StringIO(labelled))][1:] == ["two words"] * 3


def test_a_selection_is_saved_under_a_new_name_inside_the_folder(ask: Ask, tmp_path: Path) -> None:
    rows = np.array([1, 2], dtype="<u4").tobytes()
    label = {**POSTED, "x-label": "..%2F..%2Fup%2F%00name"}
    first, second = (json.loads(ask("POST", f"/{TOKEN}/save/csv", label, rows).body)["saved"] for _ in range(2))
    links = Path(json.loads(ask("POST", f"/{TOKEN}/save/links", POSTED, rows).body)["saved"])
    assert first != second
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [Path(first).name, Path(second).name, links.name]
    )
    assert sorted(path.resolve().name for path in links.rglob("*.png")) == ["004.png", "006.png"]
    assert all(path.is_symlink() for path in links.rglob("*.png"))


@pytest.mark.parametrize("body", [b"\0\0\0", np.array([COUNT], dtype="<u4").tobytes(), b"\xff" * 4])
def test_a_selection_of_other_numbers_is_refused(ask: Ask, body: bytes) -> None:
    for path in ("selection/csv", "save/links"):
        assert ask("POST", f"/{TOKEN}/{path}", POSTED, body).status in {400, 404}


def test_a_body_that_is_too_long_is_one_line(ask: Ask) -> None:
    answer = ask("POST", f"/{TOKEN}/selection/csv", POSTED, bytes(4 * COUNT + 4))
    assert "more than 160 bytes" in json.loads(answer.body)["error"]


def test_a_name_with_a_line_break_does_not_fit_a_list(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Save the images as CSV"):
        as_text("list", ["a\nb.png"], [""])
    path = save(tmp_path, "csv", ["a\nb.png"], ["x"], "")
    assert list(csv.reader(path.open(newline=""))) == [["image", "label"], ["a\nb.png", "x"]]


def test_pictures_stay_within_their_memory(answers: Answers) -> None:
    cache = PictureCache(answers.images, limit=5000)
    made = {row: cache.picture(row, 64) for row in range(COUNT)}
    assert sum(map(len, cache._kept.values())) <= 5000
    assert cache.picture(0, 64) == made[0]
    assert made[0] is not None
    assert made[0][:2] == b"\xff\xd8"


def test_an_image_that_is_gone_is_a_cross(ask: Ask, answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers.images, "fetch", lambda _row: b"damaged")
    assert ask("GET", f"/{TOKEN}/picture/0/160").headers["content-type"] == "image/svg+xml"


def test_work_that_nobody_waits_for_is_dropped() -> None:
    background, started, gate, computed = Background(), threading.Event(), threading.Event(), list[int]()

    def work(number: int) -> Any:
        return lambda _progress: (started.set(), gate.wait(10), computed.append(number))

    background.ask(("clusters", 0, 0), work(0))
    assert started.wait(10)
    *_, last = [background.ask(("clusters", 0, number), work(number)) for number in (1, 2, 3)]
    gate.set()
    assert last.finished.wait(10)
    assert computed == [0, 3]
    assert background.ask(("clusters", 0, 3), work(9)) is last
    failed = background.ask(("other",), lambda _: 1 / 0)
    assert failed.finished.wait(10)
    assert "report it" in str(failed.error)
    background.stop()
