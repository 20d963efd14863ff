"""Pages in a real browser: what a person clicks, and that nothing leaves the page.

The browser is chromium, found on the path or by CARP_BROWSER.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import carp
from tests.commands.opened_page import Opened, draw_around

pytest.importorskip("plotly")
pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def report(run: Path, hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("report") / "report.html"
    carp.report_run(run, hostile, out=page)
    return page


def test_the_map_hovers_changes_colours_and_lists_what_a_lasso_holds(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.wait_for_function("Carp.maps['map-0'] && document.querySelector('[data-map] .nsewdrag')")
        plot = page.locator("[data-map] [data-part=plot]")
        plot.scroll_into_view_if_needed()
        place = page.evaluate(
            """() => {
                const map = Carp.maps["map-0"], plot = map.part("plot"), full = plot._fullLayout;
                const box = plot.getBoundingClientRect();
                return [box.left + full.xaxis.l2p(map.x[0]) + full.xaxis._offset,
                    box.top + full.yaxis.l2p(map.y[0]) + full.yaxis._offset];
            }"""
        )
        page.mouse.move(place[0] + 3, place[1] + 3)
        page.mouse.move(*place)
        tip = page.locator("[data-map] [data-part=tip]")
        tip.wait_for(state="visible")
        assert tip.locator(".thumb").count() == 1
        colour = page.locator("[data-map] [data-part=colour]")
        before = page.evaluate("JSON.stringify(Carp.maps['map-0'].part('plot').data[0].marker.color)")
        colour.select_option(label="certainty")
        assert page.evaluate("JSON.stringify(Carp.maps['map-0'].part('plot').data[0].marker.color)") != before
        assert page.locator("[data-map] .legend button").count() == 0
        colour.select_option(label="class")
        assert page.locator("[data-map] .legend button").count() == 2
        plot.hover()
        page.locator("[data-map] .modebar-btn[data-val=lasso]").click()
        draw_around(page, plot)
        chosen = page.locator("[data-map] [data-part=list] li")
        page.wait_for_function("document.querySelectorAll('[data-map] [data-part=list] li').length > 0")
        assert chosen.count() == 40
        with page.expect_download() as saved:
            page.get_by_role("button", name="Save as CSV").click()
        lines = Path(saved.value.path()).read_text().splitlines()
        assert lines[0] == "image,class"
        assert len(lines) == 41
        page.get_by_role("button", name="Clear the selection").click()
        assert chosen.count() == 0


def test_arrow_keys_walk_through_the_map(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.wait_for_function("Carp.maps['map-0'] && document.querySelector('[data-map] .nsewdrag')")
        page.locator("[data-map] [data-part=plot]").focus()
        seen = set()
        for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
            page.keyboard.press(key)
            seen.add(page.evaluate("Carp.maps['map-0'].current"))
        assert len(seen) >= 2
        assert page.locator("[data-map] [data-part=tip]").is_visible()


def test_hostile_names_are_text(browser: Any, report: Path) -> None:
    with Opened(browser, report) as page:
        page.wait_for_function("Carp.maps['map-0']")
        assert page.locator("img[src=x]").count() == 0
        names = page.evaluate("Carp.maps['map-0'].data.names")
        assert len(names) == 40
        assert any("<img src=x onerror=alert(1)>.png" in name for name in names)
        assert any("line\\nbreak" in name for name in names)
        assert not any("\u202e" in name for name in names)
        page.evaluate("Carp.maps['map-0'].choose([...Carp.maps['map-0'].x.keys()])")
        shown = page.locator("[data-part=list]").inner_text()
        assert "<img src=x onerror=alert(1)>.png" in shown
        assert page.locator("[data-part=list] img, [data-part=list] script").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_does_not_scroll_sideways(browser: Any, report: Path, scheme: str) -> None:
    with Opened(browser, report, width=400, scheme=scheme) as page:
        page.wait_for_function("document.querySelector('[data-chart] .plot-container')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in dark[4:-1].split(",")) < 200) == (scheme == "dark")


def test_runs_side_by_side(browser: Any, run: Path, hostile: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other <b>run")
    carp.report_run([run, other], hostile, out=tmp_path / "both.html", limit=20)
    with Opened(browser, tmp_path / "both.html") as page:
        page.wait_for_function("Carp.maps['map-0'] && Carp.maps['map-1']")
        assert "other <b>run" in page.locator("h1").inner_text()
        assert page.locator("#map [data-map]").count() == 2
        assert page.evaluate("Carp.maps['map-0'].data.names.join() === Carp.maps['map-1'].data.names.join()")
        traces = page.evaluate("document.querySelector('[data-chart=losses]').data.map((trace) => trace.name)")
        assert len(traces) == 4


def test_clusters_can_be_sorted(browser: Any, run: Path, hostile: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    carp.cluster(hostile, run, clusters=4, out=tmp_path)
    with Opened(browser, tmp_path / "clusters.html") as page:
        sizes = "[...document.querySelectorAll('#cards article')].map((card) => Number(card.dataset.tightness))"
        page.locator("[data-sort]").select_option("tightness")
        loosest = page.evaluate(sizes)
        assert loosest == sorted(loosest)
        page.locator("[data-sort]").select_option("-tightness")
        assert page.evaluate(sizes) == loosest[::-1]


def test_sheets_run_no_script_at_all(browser: Any, run: Path, hostile: Path, tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    carp.embed(run, hostile, tmp_path / "features")
    carp.index(tmp_path / "features")
    query = next(path for path in hostile.rglob("*") if "onerror" in path.name)
    carp.search(tmp_path / "features", query, k=39, sheet=tmp_path / "found.html")
    with Opened(browser, tmp_path / "found.html") as page:
        assert page.locator("script").count() == 0
        assert page.locator("figure.picture img").count() == 40
        assert "<img src=x onerror=alert(1)>.png" in page.locator("main").inner_text()


def test_the_report_shows_every_section(report: Path) -> None:
    text = report.read_text()
    for key in ("diagnosis", "curves", "map", "neighbours", "classes", "prototypes", "outliers", "views", "settings"):
        assert f'<section id="{key}"' in text, key
    assert 'http-equiv="Content-Security-Policy"' in text
    assert not np.any([f' src="{scheme}' in text for scheme in ("http", "//", "file")])
