"""Names from outside on the screen: visible text stays, everything else is escaped, in one line."""

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from carp.console.printable import printable
from carp.console.safe_console import SafeConsole

NASTY = "\x1b[2J\x1b]0;title\x07 a\nb\r\x85 \u202e\u2028 \udcff \x00"


def test_plain_names_stay_as_they_are():
    for name in ("photo 1.jpg", "Größe, 写真 [draft].png", "👩\u200d🔬.jpg", "/a/b\\c"):
        assert printable(name) == name


def test_control_characters_and_bytes_that_are_no_text_are_escaped():
    assert printable("a\x1b[31mb") == "a\\x1b[31mb"
    assert printable("a\nb\tc") == "a\\nb\\tc"
    assert printable("\udcff") == "\\xff"
    assert printable("\u202egpj.exe") == "\\u202egpj.exe"
    assert printable("a\nb", keep="\n") == "a\nb"


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_whatever_the_text_is_it_prints_as_one_harmless_line(text):
    shown = printable(text)
    assert all(unicodedata.category(c) not in {"Cc", "Cs", "Zl", "Zp"} for c in shown)
    shown.encode()
    assert shown.count("\n") == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_prints_lines_and_tables_harmlessly(terminal):
    text = io.StringIO()
    console = SafeConsole(file=text, force_terminal=terminal, color_system=None, width=200)
    table = Table()
    table.add_column(Text(NASTY))
    table.add_row(Text(NASTY))
    console.print(table)
    console.print(NASTY, markup=False)
    for bad in ("\x1b", "\x07", "\x85", "\r", "\u202e", "\udcff", "\x00"):
        assert bad not in text.getvalue()
    assert "\\x1b" in text.getvalue()
