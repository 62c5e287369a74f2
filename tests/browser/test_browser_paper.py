"""The API's own pages without a network, and every view on paper."""

from __future__ import annotations

import base64
import re

import pytest
from api_server import Server
from browser import PATIENCE_S, POLL_S, complaints, drawn, foreign_requests, prefer
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

# Routes that both pages must show, in the words of the description.
ROUTES = ("/best-config", "/tune", "/jobs/{job_id}")


@pytest.mark.long
@pytest.mark.parametrize(("path", "parts"), [("/docs", ".opblock"), ("/redoc", "[data-section-id^='tag/']")])
def test_the_api_s_pages_need_no_network(
    window: webdriver.Chrome, full: Server, path: str, parts: str
) -> None:
    window.get(full.url + path)
    count = f"return document.querySelectorAll({parts!r}).length"
    WebDriverWait(window, 2 * PATIENCE_S, POLL_S).until(lambda _: window.execute_script(count) > 5, parts)
    shown = "return document.body.innerText.replaceAll('\\u200b', '')"  # Swagger UI lets long paths wrap
    text = str(window.execute_script(shown))
    for route in ROUTES:
        assert route in text, route
    box = window.execute_script(f"return document.querySelector({parts!r}).getBoundingClientRect().toJSON()")
    assert box["width"] > 200
    assert box["height"] > 20
    assert complaints(window) == []
    assert foreign_requests(window, full.url) == []


PAPER = {
    "landscape": False,
    "printBackground": False,
    "paperWidth": 8.27,
    "paperHeight": 11.69,
}


@pytest.mark.long
def test_every_view_prints(window: webdriver.Chrome, full: Server, views: dict[str, str]) -> None:
    window.get("about:blank")
    blank = _pdf(window)
    for scheme in ("light", "dark"):
        for name, path in views.items():
            prefer(window, scheme)
            window.get(full.url + path)
            drawn(window)
            _on_paper(window, scheme)
            seen = window.execute_script(_SEEN)
            assert seen["hidden"] == [], name
            assert len(seen["text"]) > 100, name
            assert seen["faint"] == [], (name, scheme)
            assert seen["wide"] <= 0, name
            prefer(window, "light")
            if scheme == "light":
                printed = _pdf(window)
                assert printed.startswith(b"%PDF-"), name
                assert len(printed) > 4 * len(blank), name
                assert len(re.findall(rb"/Type ?/Page\b", printed)) >= 1, name
                assert b"/Font" in printed, name


def _on_paper(window: webdriver.Chrome, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})


def _pdf(window: webdriver.Chrome) -> bytes:
    return base64.b64decode(window.execute_cdp_cmd("Page.printToPDF", PAPER)["data"])


# What paper has no use for and is shown all the same; the text; text that white paper makes unreadable.
_SEEN = """
    const light = (colour) => {
      const [r, g, b] = colour.match(/[0-9.]+/g).map((part) => {
        const one = Number(part) / 255;
        return one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const there = (one) => one.getClientRects().length > 0;
    const all = (names) => [...document.querySelectorAll(names)].filter(there);
    const told = all('h1, p, td, th, dt, dd, li, a, .label, .more, summary, figcaption, small');
    const ratio = (one) => 1.05 / (light(getComputedStyle(one).color) + 0.05);
    return {
      hidden: all('nav, footer, form, button, .tools, .skip').map((one) => one.outerHTML.slice(0, 80)),
      text: document.querySelector('main').innerText,
      faint: told.filter((one) => one.innerText.trim() && ratio(one) < 4.5).map((one) => one.outerHTML),
      wide: document.documentElement.scrollWidth - innerWidth,
    };"""
