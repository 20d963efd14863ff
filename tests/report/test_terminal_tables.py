"""What `carp search` and `carp duplicates` print on a terminal; in a pipe they print tab-separated rows instead."""

import re

import pytest

from carp.report.pages.copies_page import print_copies
from carp.report.pages.search_page import print_found
from carp.similarity.copies_found import CopiesFound, Group, Member
from carp.similarity.matches import Found, Match

NASTY = "[bold]a\x1b[2Jb.jpg"  # neither markup nor a control sequence


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The lines on a terminal of 60 columns, without colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    def lines() -> list[str]:
        out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
        assert "\x1b" not in out
        return out.splitlines()

    return lines


def test_a_search_names_each_query_once_and_never_cuts_a_name(printed) -> None:
    long = "folder/" * 20 + "found.jpg"
    print_found([Found("query.jpg", [Match(0.98765, NASTY, 0), Match(0.5, long, 1)]), Found("other.jpg", [])])
    lines = printed()
    assert sum("query.jpg" in line for line in lines) == 1
    assert "0.988" in next(line for line in lines if "query.jpg" in line)
    text = "".join(re.sub(r"[\s│┃]", "", line) for line in lines)
    assert "[bold]a" in text
    assert text.count("folder/") == 20
    assert "found.jpg" in text


def test_the_first_ten_groups_of_copies_are_shown_and_the_rest_is_counted(printed) -> None:
    def member(group: int, number: int) -> Member:
        name = NASTY if number else f"original-{group}.jpg"
        return Member(number, name, 0.987, 640, 480, 1000, identical=number == 0)

    groups = [Group([member(group, number) for number in range(2)]) for group in range(12)]
    print_copies(CopiesFound("photos", 100, 0.9, "as given", groups, 0))
    lines = printed()
    assert "12 copies in 12 groups among 100 images of photos" in lines[0]
    assert [sum(f"original-{group}.jpg" in line for line in lines) for group in range(12)] == [1] * 10 + [0] * 2
    assert sum("[bold]a" in line for line in lines) == 10
    assert lines[-1] == "… and 2 more groups"
