"""A service with the results of an H200, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import h200_store
import httpx2
import pytest
from api_server import Server, finish, start
from browser import browser, complaints, foreign_requests
from selenium import webdriver

from tilewright import Client


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service that holds what an H200 measured, and tunes on the host."""
    folder: Path = tmp_path_factory.mktemp("full")
    h200_store.write_recorded(folder)
    running = start(folder)
    yield running
    finish(running)


@pytest.fixture(scope="session")
def views(full: Server) -> dict[str, str]:
    """The path of each view by its name."""
    many = h200_store.space(h200_store.SPACES[0]).problem
    with Client(full.url, timeout=60.0) as client:
        job = [one.id for one in client.jobs(limit=20).items if one.problem == many][-1]
    table = httpx2.get(f"{full.url}/view/results?csv=payoff", timeout=60).text.splitlines()
    (raced,) = (row.rpartition(",")[2] for row in table if row.startswith(f"{h200_store.RACED},"))
    device_class = h200_store.h200().device_class.id
    return {
        "start": "/",
        "now": "/view/now",
        "jobs": "/view/jobs",
        "job": f"/view/jobs/{job}",
        "results": "/view/results",
        "result": f"/view/results/{raced}",
        "why": f"/view/results/{raced}/why",
        "knobs": f"/view/jobs/{job}/knobs",
        "parallel": f"/view/jobs/{job}/parallel",
        "coverage": "/view/coverage",
        "roofline": "/view/roofline",
        "compare": f"/view/compare?left={device_class}&right={device_class}",
    }


@pytest.fixture(scope="session")
def shared_window() -> Iterator[webdriver.Chrome]:
    with browser() as window:
        yield window


@pytest.fixture
def window(shared_window: webdriver.Chrome, full: Server) -> Iterator[webdriver.Chrome]:
    """A browser without cookies, whose pages must not complain nor ask other machines."""
    complaints(shared_window)
    foreign_requests(shared_window, full.url)
    yield shared_window
    shared_window.delete_all_cookies()
