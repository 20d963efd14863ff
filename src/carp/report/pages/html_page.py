"""Pages of pictures as HTML that needs no other file."""

import base64
import io
from html import escape
from pathlib import Path

from carp.errors import DataError
from carp.files.atomic import write_atomic
from carp.report.pages.thumbnails import Picture

_STYLE = """
:root { color-scheme: light dark; --faint: #77777f; --line: #8884; --good: #1a7f4b }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; padding: 0 1.5rem; max-width: 80rem }
h1 { font-size: 1.4rem; margin: 0 0 .3rem }
h2 { font-size: 1rem; margin: 0 0 .6rem }
main { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: stretch; margin-top: 1rem }
section { border-top: 1px solid var(--line); padding: 1rem 0; flex: 0 1 auto }
.row { display: flex; flex-wrap: wrap; align-items: flex-start }
figure { margin: 0 1rem 1rem 0; width: 164px }
figure .frame { height: 164px; display: flex; align-items: center; justify-content: center; background: #8882 }
figure.first .frame { outline: 3px solid var(--good) }
img { max-width: 160px; max-height: 160px }
figcaption { font-size: 12px; overflow-wrap: anywhere; margin-top: .3rem }
p, small { color: var(--faint); margin: .2rem 0 }
b.good { color: var(--good) }
"""


def figure(picture: Picture) -> str:
    """Return a thumbnail as HTML, with its pixels embedded."""
    if picture.image is None:
        inside = "<small>cannot be read</small>"
    else:
        file = io.BytesIO()
        picture.image.save(file, "JPEG", quality=80)
        inside = f'<img src="data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}" alt="" />'
        if picture.file and Path(picture.file).is_file():
            inside = f'<a href="{escape(Path(picture.file).resolve().as_uri())}">{inside}</a>'
    head = f'<b class="good">{shown(picture.head)}</b>' if picture.mark else f"<b>{shown(picture.head)}</b>"
    below = "".join(f"<br />{shown(line)}" for line in picture.lines)
    mark = ' class="first"' if picture.mark else ""
    return f'<figure{mark}><div class="frame">{inside}</div><figcaption>{head}{below}</figcaption></figure>'


def section(title: str, pictures: list[Picture]) -> str:
    """Return HTML with thumbnails side by side below a title."""
    return f'<section><h2>{shown(title)}</h2><div class="row">{"".join(map(figure, pictures))}</div></section>'


def write_page(path: Path, title: str, notes: list[str], sections: list[str]) -> None:
    """Write an HTML page that is also well-formed XML."""
    lines = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8" /><title>{shown(title)}</title>',
        f"<style>{escape(_STYLE, quote=False)}</style></head><body>",
        f"<h1>{shown(title)}</h1>",
        *(f"<p>{shown(note)}</p>" for note in notes),
        "<main>",
        *sections,
        "</main></body></html>\n",
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, "\n".join(lines))
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another file.") from error


def shown(text: str) -> str:
    """Escape text for HTML; file names may contain any bytes, even invalid text."""
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    return escape(printable)
