"""Pages as HTML that needs no other file: Jinja templates, one style sheet, and our own scripts.

Templates escape all text, whatever its source, and invisible characters are shown as escapes. A
page forbids everything that is not part of it (Content-Security-Policy): no request leaves it, and only the scripts
that CARP wrote into it run, each named by its hash.
"""

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from carp._version import __version__
from carp.console.printable import printable
from carp.errors import DataError
from carp.files.atomic import write_atomic
from carp.report.pages.thumbnails import Picture

_TINY = 80  # pixels: smaller images are enlarged without smoothing
_JPEG = 82


@dataclass(frozen=True)
class ShownPicture:
    """A `Picture` as a template draws it."""

    src: str
    kind: str
    name: str
    head: str
    lines: tuple[str, ...]
    marked: bool
    link: str


@dataclass(frozen=True)
class Fact:
    """One number or word in a tile."""

    name: str
    value: str
    note: str = ""


def write_page(path: Path, template: str, *, title: str, **values: Any) -> None:
    """Render a template into a file, whose folder is created; see `render_page`."""
    text = render_page(template, title=title, **values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}. Give another file.") from error


def render_page(
    template: str,
    *,
    title: str,
    notes: Sequence[str] = (),
    contents: Sequence[tuple[str, str]] = (),
    data: Mapping[str, Any] | None = None,
    scripts: Sequence[str] = (),
    evaluates: bool = False,
    served: bool = False,
    **values: Any,
) -> str:
    """Render a template.

    Args:
        template: A file of `templates/`.
        title: The heading.
        notes: Lines below it.
        contents: Identifiers and names of the sections, for a bar of links.
        data: What scripts find as JSON in elements `data-KEY`; see `text_for_scripts`.
        scripts: JavaScript, in the order in which it runs.
        evaluates: Whether a library among the scripts compiles code of its own, as Plotly's WebGL does.
        served: Whether the page asks the server that it came from for more.
        **values: What else the template needs.
    """
    code = [Markup(script.replace("</script", "<\\/script")) for script in scripts]
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            notes=notes,
            contents=contents,
            data=data or {},
            scripts=code,
            policy=_policy(code, evaluates=evaluates, served=served),
            style=Markup(asset("style.css")),
            version=__version__,
            **values,
        )
    )


def asset(name: str) -> str:
    """The text of a style sheet or script in `templates/`."""
    return (files("carp.report.pages") / "templates" / name).read_text(encoding="utf-8")


def shown_picture(picture: Picture) -> ShownPicture:
    """A picture with its pixels as a data address, and a link to its file if there is one."""
    image, file = picture.image, picture.file
    return ShownPicture(
        src="" if image is None else data_address(image),
        kind="" if image is None or max(image.size) > _TINY else "tiny",
        name=Path(file).name or picture.head,
        head=picture.head,
        lines=picture.lines,
        marked=picture.mark is not None,
        link=Path(file).resolve().as_uri() if file and _is_file(file) else "",
    )


def shown_pictures(pictures: Sequence[Picture]) -> list[ShownPicture]:
    """Several pictures."""
    return [shown_picture(picture) for picture in pictures]


def data_address(image: Image.Image, quality: int = _JPEG) -> str:
    """An image as a JPEG inside its address."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", quality=quality, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def text_for_scripts(text: str) -> str:
    """Text that a script writes into the page: as a template would show it. Scripts use it as text, never as HTML."""
    return printable(text)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("carp.report.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value, keep="\n") if type(value) is str else value,
    )


def _policy(scripts: Sequence[str], *, evaluates: bool, served: bool) -> str:
    hashes = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in scripts)
    allowed = [*(f"'sha256-{each}'" for each in hashes), *(["'unsafe-eval'"] if evaluates else [])] or ["'none'"]
    pictures = "'self' data: blob:; connect-src 'self'" if served else "data: blob:"
    return (
        f"default-src 'none'; img-src {pictures}; style-src 'unsafe-inline'; script-src {' '.join(allowed)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a name that is too long for a file system
        return False
