"""A headless Chromium for the tests, driven by Selenium; without one the tests skip."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_HARMLESS = ("favicon",)
PATIENCE_S = 30


@contextlib.contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[webdriver.Chrome]:
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
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        found.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        found.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        yield found
    finally:
        found.quit()


def complaints(found: webdriver.Chrome) -> list[str]:
    """What the console said since the last call: errors, and what the policy refused."""
    lines: list[dict[str, Any]] = found.get_log("browser")  # type: ignore[no-untyped-call]
    return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]
