"""Text from outside on a screen."""

import pytest

from carp.console.printable import one_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café 猫.png", "café 猫.png"),
        ("\x1b[2J\r\n", r"\x1b[2J\r\n"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202egnp", r"\u202egnp"),
        ("\udcff", r"\xff"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_is_not_visible_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert one_line(text) == shown


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    """What is wrong stands at the beginning, what to do at the end."""
    shown = one_line(f"there is no file {'x' * 100_000}. Give another.")
    assert len(shown) < 1300
    assert shown.startswith("there is no file x")
    assert shown.endswith("x. Give another.")
    assert " … " in shown
