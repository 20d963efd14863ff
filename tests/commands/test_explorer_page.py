"""The explorer in a real browser: what a person clicks, drops, draws and drags, and that nothing leaves the machine."""

import contextlib
import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from tests.commands.conftest import HOSTILE
from tests.commands.opened_page import Opened, draw_around

pytest.importorskip("starlette")
pytest.importorskip("faiss")
playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def address(
    browser: Any, run: Path, hostile: Path, saved: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A run beside vectors of another encoder, on images with hostile names."""
    other = tmp_path_factory.mktemp("other") / "other <b>vectors.npy"
    np.save(other, np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32))
    with carp.explore([run, other], hostile, out=saved) as explorer:
        yield explorer.address


def until(page: Any, expression: str) -> None:
    """Wait until JavaScript gives true; the policy of the page does not let Playwright do that inside it."""
    for _ in range(400):
        if page.evaluate(f"Boolean({expression})"):
            return
        time.sleep(0.05)
    raise AssertionError(expression)


def is_ready(page: Any) -> None:
    until(page, "Carp.explorer && Carp.explorer.schemes.some((each) => each.key === 'kept')")
    until(page, "Carp.explorer.maps.every((map) => map.painted && map.mixed === 1)")


def place_of(page: Any, row: int, space: int = 0) -> tuple[float, float]:
    """Where a point is on the screen."""
    code = """([row, space]) => {
        const map = Carp.explorer.maps[space], box = map.element.getBoundingClientRect(), at = map.toScreen(row);
        return [box.left + at[0], box.top + at[1]];
    }"""
    left, top = page.evaluate(code, [row, space])
    return left, top


def colours(page: Any) -> str:
    """What the first map was last coloured with."""
    return str(page.evaluate("Carp.explorer.scheme.key + Carp.explorer.only"))


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    with Opened(browser, address) as opened:
        is_ready(opened)
        until(
            opened, "![...document.querySelectorAll('.method')].some((each) => each.textContent.includes('laid out'))"
        )
        until(opened, "Carp.explorer.maps.every((map) => map.mixed === 1)")
        yield opened


def test_click_hover_keys_and_colours(page: Any) -> None:
    row = page.evaluate("Carp.explorer.maps[0].at(...Carp.explorer.maps[0].toScreen(7))")
    tip = page.locator("[data-space='0'] .tip")
    for _ in range(20):  # on a busy machine, the map may still be laid out under the pointer
        page.mouse.move(0, 0)
        page.mouse.move(*place_of(page, row))
        with contextlib.suppress(playwright.TimeoutError):
            tip.wait_for(state="visible", timeout=1500)
            break
    assert tip.is_visible()
    until(page, "document.querySelector(\"[data-space='0'] .tip img\").naturalWidth > 0")
    until(page, "document.querySelector(\"[data-space='0'] .tip bdi\")")
    page.mouse.click(*place_of(page, row))
    page.locator("#pane-image figure.query").wait_for()
    until(page, f"Carp.explorer.query === {row}")
    assert page.locator("#pane-image figure.picture").count() == 2 * 24
    assert page.evaluate("Carp.explorer.maps[0].marks.length") == 25
    until(
        page, "[...document.querySelectorAll('#pane-image figure.picture img')].every((each) => each.naturalWidth > 0)"
    )
    neighbour = page.locator("#pane-image figure.picture button").nth(3)
    wanted = int(page.locator("#pane-image figure.picture").nth(3).get_attribute("data-row"))
    neighbour.click()
    until(page, f"Carp.explorer.query === {wanted}")
    page.locator(".points").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    current = page.evaluate("Carp.explorer.maps[0].current")
    assert current >= 0
    page.keyboard.press("Enter")
    until(page, f"Carp.explorer.query === {current}")
    names = [option.inner_text() for option in page.locator("#colour option").all()]
    assert names[0] == "class"
    assert {"cluster", "certainty of the cluster", "neighbours kept"} <= set(names)
    before = colours(page)
    page.select_option("#colour", label="neighbours kept")
    assert colours(page) != before
    assert page.locator("#legend .ramp").count() == 1
    page.select_option("#colour", label="class")
    page.locator("#legend button").first.click()
    assert colours(page) == "class0"


def test_lasso_download_and_save(page: Any, saved: Path) -> None:
    page.click("#tool-lasso")
    page.evaluate("Carp.explorer.maps[0].zoom(0.7)")  # the corners of the map stay clear
    draw_around(page, page.locator(".points").first)
    until(page, "document.querySelectorAll('#pane-selection figure.picture').length === 40")
    assert "40 images" in page.locator("#pane-selection [data-part=count]").inner_text()
    with page.expect_download() as got:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.reader(Path(got.value.path()).read_text().splitlines(keepends=True)))
    assert rows[0] == ["image", "label"]
    assert {Path(row[0]).name for row in rows[1:]} >= set(HOSTILE)
    page.fill("[data-part=label]", "../<b>mine")
    page.get_by_role("button", name="Save links").click()
    until(page, "document.querySelector('[data-part=saved]').textContent.startsWith('Saved')")
    (made,) = saved.iterdir()
    assert sum(path.is_symlink() for path in made.rglob("*")) == 40
    page.get_by_role("button", name="Clear").click()
    assert page.locator("#pane-selection [data-part=chosen]").is_hidden()


def test_search_with_a_file(page: Any, hostile: Path, tmp_path: Path) -> None:
    image = next(hostile.rglob("*013.png"))
    page.set_input_files("#file", image)
    page.locator("#pane-image figure.query").wait_for()
    first = page.locator("#pane-image figure.picture").first
    assert "013.png" in first.inner_text()
    assert "1.00" in first.inner_text()
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 damaged")
    page.set_input_files("#file", tmp_path / "damaged.jpg")
    problem = page.locator("#problem")
    problem.wait_for(state="visible")
    assert "cannot read the image" in problem.inner_text()
    assert "\n" not in problem.inner_text().strip()
    dropped = """async ([bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(bytes)], "dropped.png", { type: "image/png" }));
        dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    page.evaluate(dropped, [list(image.read_bytes())])
    until(page, "document.querySelector('figure.query bdi')?.textContent === 'dropped.png'")
    assert problem.is_hidden()


def test_clusters_prototypes_copies_and_comparison(page: Any) -> None:
    page.click("#tab-groups")
    before = page.locator("#pane-groups article.card").count()
    page.locator("#clusters").focus()
    page.locator("#clusters").press("End")
    until(page, "Carp.explorer.clusters.k === 20")
    assert page.locator("#cluster-count").inner_text() == "20"
    assert page.locator("#pane-groups article.card").count() > before
    page.locator("#pane-groups article.card").first.get_by_role("button", name="Open").click()
    until(page, "document.querySelectorAll('#pane-groups .detail figure.picture').length > 0")
    assert colours(page) == "cluster0"
    page.get_by_role("button", name="Select these images").click()
    until(page, "Carp.explorer.chosen.length > 0")
    page.click("#tab-prototypes")
    until(page, "document.querySelectorAll('#pane-prototypes [data-prototype]').length > 24")
    page.locator("#pane-prototypes article.card").first.get_by_role("button", name="Open").click()
    until(page, "document.querySelectorAll('#pane-prototypes .detail figure.picture').length === 40")
    page.click("#tab-copies")
    until(page, "/near-duplicates/.test(document.querySelector('#pane-copies').textContent)")
    page.click("#tab-comparison")
    text = page.locator("#pane-comparison").inner_text()
    assert "other <b>vectors share" in text
    assert page.locator("#pane-comparison figure.picture").count() == 48
    page.select_option("#space", "1")
    until(page, "Carp.explorer.clusters.space === 1")


def test_hostile_names_are_text_and_narrow_pages_fit(browser: Any, address: str) -> None:
    with Opened(browser, address, width=400, scheme="dark") as page:
        is_ready(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.evaluate("Carp.explorer.select(Uint32Array.from({ length: 40 }, (_, row) => row))")
        until(page, "document.querySelectorAll('#pane-selection figure.picture').length === 40")
        shown = page.locator("#pane-selection").inner_text()
        assert "<img src=x onerror=alert(1)>.png" in shown
        assert "line\\nbreak" in shown
        assert "\u202e" not in page.content()
        assert page.locator("img[src=x]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_graphics_card_draws_the_same_points(browser: Any, address: str) -> None:
    """Elsewhere in these tests a processor imitates the card, and the page draws pixel by pixel."""
    context = browser.new_context(viewport={"width": 800, "height": 600})
    context.add_init_script("WebGLRenderingContext.prototype.getParameter = () => 'a graphics card'")
    wrong = list[str]()
    counts = """() => {
        const map = Carp.explorer.maps[0], { canvas, layer } = map, [width, height] = [canvas.width, canvas.height];
        layer.draw({ ...map.view, scale: map.view.scale * map.ratio }, width, height, 9, 1);
        const pixels = new Uint8Array(4 * width * height);
        if (layer.gl) layer.gl.readPixels(0, 0, width, height, layer.gl.RGBA, layer.gl.UNSIGNED_BYTE, pixels);
        else pixels.set(canvas.getContext("2d").getImageData(0, 0, width, height).data);
        return [Boolean(layer.gl), pixels.filter((value, place) => place % 4 === 3 && value > 60).length];
    }"""
    found = []
    for page in (context.new_page(), browser.new_page(viewport={"width": 800, "height": 600})):
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        is_ready(page)
        found.append(page.evaluate(counts))
        page.close()
    context.close()
    assert not wrong
    (card, drawn), (imitated, plain) = found
    assert (card, imitated) == (True, False)
    assert drawn == pytest.approx(plain, rel=0.2)
    assert drawn > 1000
