"""The page of the explorer: a template, our own scripts, and what it needs to know at the start."""

from dataclasses import dataclass
from typing import Any

from carp.report.pages.template import asset, render_page

SCRIPTS = ("point_map.js", "explorer_panels.js", "explorer.js")


@dataclass(frozen=True)
class ServedPage:
    """A page and the headers that belong to it."""

    text: str
    headers: dict[str, str]


def explorer_page(about: dict[str, Any]) -> ServedPage:
    """Render the page; its policy is in its head, and a header forbids to show it inside other pages."""
    title = " and ".join(space["name"] for space in about["spaces"])
    text = render_page(
        "explorer.html",
        title=title,
        notes=[],
        data={"about": about},
        scripts=[asset(name) for name in SCRIPTS],
        served=True,
        about=about,
    )
    return ServedPage(text, {"content-security-policy": "frame-ancestors 'none'"})
