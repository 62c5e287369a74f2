"""A headless Chromium for the tests, driven by Selenium; without one the tests skip."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 30
POLL_S = 0.05  # from one look at a page to the next


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[webdriver.Chrome]:
    """A browser with a window of this size; requests to anything but this machine fail."""
    program = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    flags = ["--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    flags += ["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"]
    for flag in [*flags, f"--window-size={width},{height}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    try:
        found.set_page_load_timeout(PATIENCE_S)
        resize(found, width, height)
        prefer(found, "light")
        yield found
    finally:
        found.quit()


def complaints(found: webdriver.Chrome) -> list[str]:
    """What the console said since the last call: errors, and what the policy refused."""
    lines: list[dict[str, Any]] = found.get_log("browser")  # type: ignore[no-untyped-call]
    return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]


def foreign_requests(found: webdriver.Chrome, url: str) -> list[str]:
    """What the pages asked of other addresses than the service's since the last call."""
    lines: list[dict[str, Any]] = found.get_log("performance")  # type: ignore[no-untyped-call]
    messages = (json.loads(line["message"])["message"] for line in lines)
    sent = (one for one in messages if one["method"] == "Network.requestWillBeSent")
    asked = [one["params"]["request"]["url"] for one in sent]
    return [one for one in asked if not one.startswith((url, "data:", "blob:", "chrome:", "about:"))]


def resize(found: webdriver.Chrome, width: int, height: int = 900) -> None:
    """Give the page a window of this size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def beyond(found: webdriver.Chrome, width: int) -> int:
    """By how many pixels the open page is wider than a window of this width, once its plots followed."""
    resize(found, width)
    script = "return document.documentElement.scrollWidth - innerWidth"
    with contextlib.suppress(TimeoutException):
        WebDriverWait(found, 2, POLL_S).until(lambda driver: driver.execute_script(script) <= 0)
    wider: int = found.execute_script(script)
    return wider


def prefer(found: webdriver.Chrome, scheme: str) -> None:
    """Have the page light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def drawn(found: webdriver.Chrome) -> None:
    """Wait until every plot of the page is drawn."""
    script = (
        "return [...document.querySelectorAll('figure[data-chart]')]"
        ".every((one) => one.dataset.drawn || !one.querySelector('.plot'))"
    )
    WebDriverWait(found, PATIENCE_S, POLL_S).until(lambda driver: driver.execute_script(script))
