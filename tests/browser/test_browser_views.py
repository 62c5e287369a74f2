"""Each view in a browser: no complaints, nothing from elsewhere, axe-core's rules, any width, and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_server import Server
from browser import complaints, drawn, foreign_requests, prefer, resize
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

AXE = (Path(__file__).parent / "axe.min.js").read_text()
NAMES = (
    *("start", "now", "jobs", "job", "results", "result"),
    *("why", "knobs", "parallel", "coverage", "roofline", "compare"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_view_opens_without_complaints(
    window: webdriver.Chrome, full: Server, views: dict[str, str], name: str
) -> None:
    for scheme in ("light", "dark"):
        prefer(window, scheme)
        window.get(full.url + views[name])
        drawn(window)
        assert complaints(window) == []
        assert foreign_requests(window, full.url) == []
    prefer(window, "light")
    assert window.find_elements(By.TAG_NAME, "h1")


@pytest.mark.parametrize("name", NAMES)
def test_a_view_breaks_no_serious_rule_of_axe(
    window: webdriver.Chrome, full: Server, views: dict[str, str], name: str
) -> None:
    for scheme in ("light", "dark"):
        prefer(window, scheme)
        window.get(full.url + views[name])
        drawn(window)
        window.execute_script(AXE)
        found = window.execute_async_script("axe.run().then(arguments[0])")
        told = [
            (one["id"], [node["html"][:120] for node in one["nodes"][:3]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
        assert told == [], scheme
        assert len(found["passes"]) > 15
    prefer(window, "light")


@pytest.mark.parametrize("width", [360, 768, 2560])
def test_no_view_is_wider_than_its_window(
    window: webdriver.Chrome, full: Server, views: dict[str, str], width: int
) -> None:
    resize(window, width)
    wide = {}
    for name, path in views.items():
        window.get(full.url + path)
        drawn(window)
        wide[name] = window.execute_script("return document.documentElement.scrollWidth - innerWidth")
    resize(window, 1280)
    assert {name: more for name, more in wide.items() if more > 0} == {}


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
            for _ in range(100):
                if file.exists() and file.stat().st_size > 1000:
                    break
                window.execute_async_script("setTimeout(arguments[0], 100)")
            assert file.read_bytes().startswith(start), (name, kind)
    assert complaints(window) == []
