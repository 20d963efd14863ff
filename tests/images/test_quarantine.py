"""Bad images: who takes their place, what is written down, when it is too much."""

import json
from pathlib import Path

import numpy as np
import pytest

from carp.errors import BadImagesError, CheckpointError
from carp.images.loading.quarantine import Misses, Quarantine, Unreadable, proves_too_many, substitutes


def bad(*indices: int) -> Misses:
    return Misses([Unreadable(i, f"folder/{i}.png", "the file is empty") for i in indices])


def first_substitutes(count: int, num_images: int, **coordinates: int) -> list[int]:
    drawn = substitutes(num_images, **{"seed": 0, "epoch": 0, "index": 0, **coordinates})
    return [next(drawn) for _ in range(count)]


def test_substitutes_depend_on_every_coordinate_and_on_nothing_else() -> None:
    lists = [first_substitutes(5, 10**6, **{name: 1}) for name in ("seed", "epoch", "index")]
    lists.append(first_substitutes(5, 10**6))
    assert len({tuple(drawn) for drawn in lists}) == 4
    assert lists[3] == first_substitutes(5, 10**6)


def test_substitutes_are_spread_evenly_over_all_images() -> None:
    counts = np.bincount(first_substitutes(1000, 10) + first_substitutes(1000, 10, epoch=3), minlength=10)
    assert len(counts) == 10
    assert abs(counts - 200).max() < 5 * np.sqrt(200)


def test_every_bad_image_is_written_down_once_also_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    first = Quarantine(100, 0.5, path)
    first.add(bad(3, 7, 3))
    first.add(bad(7, 9))
    again = Quarantine(100, 0.5, path)
    assert len(again) == 3
    again.add(bad(9, 3, 11))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["index"] for line in lines] == [3, 7, 9, 11]
    assert lines[0] == {"index": 3, "place": "folder/3.png", "reason": "the file is empty"}
    assert again.summary() == f"4 of 100 images could not be read: {path}"


def test_names_that_are_not_utf8_survive_the_file(tmp_path: Path) -> None:
    path, place = tmp_path / "quarantine.jsonl", "größe/猫\udcff.png"
    Quarantine(100, 0.5, path).add(Misses([Unreadable(0, place, "reason")]))
    assert json.loads(path.read_text())["place"] == place
    assert len(Quarantine(100, 0.5, path)) == 1


def test_a_line_cut_short_by_a_kill_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    Quarantine(100, 0.5, path).add(bad(3, 7))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        Quarantine(100, 0.5, path).add(bad(3, 7))
        assert path.read_bytes() == whole


def test_a_damaged_list_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.jsonl"
    for content in (b"no json\n", b'{"index": 3}\n', b"[]\n", b"\xff\xfe\n"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"quarantine.jsonl is damaged: \w+. Remove it"):
            Quarantine(100, 0.5, path)


def test_nothing_is_written_when_nothing_is_bad(tmp_path: Path) -> None:
    quarantine = Quarantine(100, 0, tmp_path / "quarantine.jsonl")
    quarantine.add(Misses())
    assert quarantine.summary() is None
    assert not list(tmp_path.iterdir())


def test_the_share_counts_different_images_and_may_be_reached_but_not_exceeded(tmp_path: Path) -> None:
    quarantine = Quarantine(40, 0.05, tmp_path / "quarantine.jsonl")
    for _ in range(20):
        quarantine.add(bad(3, 7))
    with pytest.raises(BadImagesError, match=r"^3 of 40 images \(0.075\) cannot be read, more than max_bad_share=0.05"):
        quarantine.add(bad(8))
    assert len((tmp_path / "quarantine.jsonl").read_text().splitlines()) == 3, "the last one is written down, too"


def test_only_the_first_few_are_warned_about() -> None:
    warnings: list[str] = []
    quarantine = Quarantine(1000, 0.5, warn=warnings.append)
    quarantine.add(bad(0))
    quarantine.add(bad(*range(3)))
    assert len(warnings) == 3
    quarantine.add(bad(*range(10)))
    quarantine.add(bad(*range(20)))
    assert len(warnings) == 4
    assert "folder/2.png: the file is empty" in warnings[2]
    assert "more images" in warnings[3]


@pytest.mark.parametrize(("share", "draws"), [(0.0, 1), (0.05, 10), (0.5, 40), (0.9, 263)])
def test_all_draws_bad_prove_it_after_a_few(share: float, draws: int) -> None:
    assert proves_too_many(draws, draws, share)
    assert not proves_too_many(draws - 1, draws - 1, share)


def test_what_chance_may_do_proves_nothing() -> None:
    assert not proves_too_many(0, 0, 0.05)
    assert not proves_too_many(1000, 50, 0.05)
    assert not proves_too_many(1000, 60, 0.05)
    assert not proves_too_many(1000, 1000, 1.0)
    assert proves_too_many(1000, 150, 0.05)
    draws = np.random.default_rng(0).random(20_000) < 0.05
    counts = np.cumsum(draws)
    assert not any(proves_too_many(n + 1, int(counts[n]), 0.05) for n in range(len(draws)))


def test_a_random_sample_ends_a_run_long_before_the_share_is_reached() -> None:
    quarantine = Quarantine(10**6, 0.05)
    misses = bad(*range(60))
    misses.drawn, misses.drawn_unreadable = 60, 30
    with pytest.raises(BadImagesError, match=r"^30 of 60 images drawn at random cannot be read, more than"):
        quarantine.add(misses)
