"""Each view in a browser: no complaints, nothing from elsewhere, axe-core's rules, any width, and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_server import Server
from browser import beyond, complaints, drawn, foreign_requests, prefer, resize
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from sweeps import every

AXE = (Path(__file__).parent / "axe.min.js").read_text()
NAMES = (
    *("start", "now", "jobs", "job", "results", "result"),
    *("why", "knobs", "parallel", "coverage", "roofline", "compare"),
)


@pytest.mark.parametrize("name", every(5, NAMES))
def test_a_view_opens_without_complaints_breaks_no_rule_and_fits_its_window(
    window: webdriver.Chrome, full: Server, views: dict[str, str], name: str
) -> None:
    """Loaded in light and wide, then narrower and wider still; and loaded in dark on a phone."""
    opened(window, full, views[name])
    assert window.find_elements(By.TAG_NAME, "h1")
    broken, passed = axe(window, "{}")
    assert (broken, passed > 15) == ([], True)
    too_wide = {width: beyond(window, width) for width in (768, 2560)}
    try:
        resize(window, 360)
        prefer(window, "dark")
        opened(window, full, views[name])
        too_wide[360] = beyond(window, 360)
        # Other rules ask what a page holds, which is the same in both.
        assert axe(window, "{runOnly: ['color-contrast', 'link-in-text-block']}")[0] == []
    finally:
        prefer(window, "light")
        resize(window, 1280)
    assert {width: more for width, more in too_wide.items() if more > 0} == {}


def opened(window: webdriver.Chrome, full: Server, path: str) -> None:
    """Open a view; nobody complains and nothing comes from elsewhere."""
    window.get(full.url + path)
    drawn(window)
    assert complaints(window) == []
    assert foreign_requests(window, full.url) == []


def axe(window: webdriver.Chrome, options: str) -> tuple[list[tuple[str, list[str]]], int]:
    """Serious rules that the page breaks, with places, and how many rules it keeps."""
    window.execute_script(AXE)
    found = window.execute_async_script(f"axe.run({options}).then(arguments[0])")
    broken = [
        (one["id"], [node["html"][:120] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    return broken, len(found["passes"])


def test_a_plot_has_the_marks_of_its_numbers(
    window: webdriver.Chrome, full: Server, views: dict[str, str]
) -> None:
    window.get(full.url + views["results"])
    drawn(window)
    script = """
        const chart = JSON.parse(document.querySelector('figure script').textContent);
        const off = echarts.init(null, null, {renderer: 'svg', ssr: true, width: 900, height: 900});
        off.setOption(chartOption(chart));
        return [chart.rows.length, off.renderToSVGString()];"""
    count, svg = window.execute_script(script)
    assert count > 30
    assert svg.startswith("<svg")
    assert "8192x8192x8192 float16 nt" in svg
    assert svg.count("<path") > count


def test_the_keyboard_reaches_the_content(
    window: webdriver.Chrome, full: Server, views: dict[str, str]
) -> None:
    window.get(full.url + views["results"])
    body = window.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    first = window.switch_to.active_element
    assert first.text == "Skip to the content"
    first.send_keys(Keys.ENTER)
    assert window.switch_to.active_element.get_attribute("id") == "main"
    landmarks = {one.tag_name for one in window.find_elements(By.CSS_SELECTOR, "header, nav, main, footer")}
    assert landmarks == {"header", "nav", "main", "footer"}


@pytest.mark.long
def test_each_plot_saves_as_png_and_svg(
    window: webdriver.Chrome, full: Server, views: dict[str, str], tmp_path: Path
) -> None:
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    window.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    for name in ("results", "parallel", "coverage", "roofline", "job"):
        window.get(full.url + views[name])
        drawn(window)
        for kind, start in (("png", b"\x89PNG"), ("svg", b"<svg")):
            window.find_element(By.CSS_SELECTOR, f"[data-save={kind}]").click()
            chart = window.execute_script(
                "return JSON.parse(document.querySelector('figure script').textContent).name"
            )
            file = tmp_path / f"{chart}.{kind}"
            for _ in range(500):
                if file.exists() and file.stat().st_size > 1000:
                    break
                window.execute_async_script("setTimeout(arguments[0], 20)")
            assert file.read_bytes().startswith(start), (name, kind)
    assert complaints(window) == []
