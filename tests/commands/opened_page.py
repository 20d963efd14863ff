"""A page in a real browser, which must not do what pages must not do."""

from pathlib import Path
from typing import Any


class Opened:
    """A page, in a file or on a server, that records what it must not do."""

    def __init__(self, browser: Any, path: Path | str, *, width: int = 1280, scheme: str = "light") -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page, self.wrong = self.context.new_page(), list[str]()
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("console", lambda line: self.wrong.append(line.text) if line.type == "error" else None)
        address = path.resolve().as_uri() if isinstance(path, Path) else path
        self.served = not isinstance(path, Path)
        self.page.on("request", lambda sent: self._refuse(sent.url, address))
        self.page.goto(address, timeout=120_000)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert not self.wrong

    def _refuse(self, url: str, address: str) -> None:
        ours = url.startswith(address) if self.served else url == address
        if not ours and not url.startswith(("data:", "blob:")):
            self.wrong.append(url)


def draw_around(page: Any, plot: Any) -> None:
    """Draw a line around nearly all of a map with the pointer."""
    box = plot.bounding_box()
    corners = [(0.02, 0.1), (0.98, 0.1), (0.98, 0.98), (0.02, 0.98), (0.02, 0.1)]
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in corners]
    page.mouse.move(*points[0])
    page.mouse.down()
    for point in points[1:]:
        page.mouse.move(*point, steps=8)
    page.mouse.up()
