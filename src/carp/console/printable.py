r"""Makes text from outside CARP safe to print on a terminal.

The name of a file may hold anything but `/` and NUL: sequences that clear the screen or rename the window, line breaks,
marks that reverse the direction of text, bytes that are not valid text. On the screen each of these is shown as an
escape such as `\x1b`. Files and JSON keep names unchanged.
"""

from carp.console.addresses import without_secrets

_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # parts of words and emoji
_LONGEST = 1200  # characters in a message; a list of all settings has 700
_RAW_BYTE = range(0xDC80, 0xDD00)  # how Python represents a byte of a name that is not UTF-8


def printable(text: object, *, keep: str = "") -> str:
    """Escape everything but visible characters and those in `keep`, such as a line break."""
    words = str(text)
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() or c in keep or c in _JOINERS else _escape(c) for c in words)


def one_line(text: object) -> str:
    """Make a message printable on one line, without secrets; if it is too long, the middle is left out."""
    words = without_secrets(str(text))
    if len(words) > _LONGEST:
        words = f"{words[: _LONGEST * 3 // 4]} … {words[-_LONGEST // 4 :]}"
    return printable(words)


def _escape(character: str) -> str:
    code = ord(character)
    if code in _RAW_BYTE:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
