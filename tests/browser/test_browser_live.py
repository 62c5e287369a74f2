"""A job that is started, followed and cancelled in a browser; signing in and out; forged forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import Server, finish, opened_database, start
from browser import PATIENCE_S, POLL_S, complaints, foreign_requests
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tuner.store.access import keys


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("empty"))
    yield running
    finish(running)


@pytest.fixture
def fresh(shared_window: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """A browser without cookies."""
    complaints(shared_window)
    foreign_requests(shared_window, "")
    yield shared_window
    shared_window.delete_all_cookies()


def text(window: webdriver.Chrome, selector: str = "main") -> str:
    # NOTE: by script, since an element may be replaced while Selenium asks for its text.
    return str(window.execute_script(f"return document.querySelector({selector!r})?.innerText || ''"))


def wait_for(window: webdriver.Chrome, wanted: str, selector: str = "main") -> None:
    WebDriverWait(window, 2 * PATIENCE_S, POLL_S).until(lambda _: wanted in text(window, selector), wanted)


def fill(window: webdriver.Chrome, **fields: str) -> None:
    for name, value in fields.items():
        box = window.find_element(By.NAME, name)
        box.clear()
        box.send_keys(value)


def press(window: webdriver.Chrome, label: str) -> None:
    window.find_element(By.XPATH, f"//button[starts-with(normalize-space(), '{label}')]").click()


def test_a_newcomer_starts_a_job_follows_and_cancels_it(fresh: webdriver.Chrome, empty: Server) -> None:
    fresh.get(empty.url)
    assert "Nothing is tuned here yet" in text(fresh)
    assert "Start with one product" in text(fresh)
    fill(fresh, m="192", n="192", k="192", max_trials="5000")
    press(fresh, "Tune")
    wait_for(fresh, "192x192x192 float32 nn", "h1")
    job = fresh.current_url
    wait_for(fresh, "running", ".facts")
    wait_for(fresh, "best so far", "figure")  # the legend of uPlot

    def measured() -> int:
        return int(text(fresh, ".facts div:nth-child(2) .value").split()[0])

    before = measured()
    told = "more trials without a reload"
    WebDriverWait(fresh, 2 * PATIENCE_S, POLL_S).until(lambda _: measured() > before + 1, told)
    assert fresh.current_url == job
    fresh.get(f"{empty.url}/view/now")
    wait_for(fresh, "tuning", "section")
    assert "192x192x192 float32 nn" in text(fresh)
    press(fresh, "Cancel")
    wait_for(fresh, "cancelled", ".facts")
    assert complaints(fresh) == []
    assert foreign_requests(fresh, empty.url) == []
    fresh.get(f"{empty.url}/view/now")
    wait_for(fresh, "No job runs")


@pytest.mark.long
def test_a_job_that_ends_leads_to_its_result(fresh: webdriver.Chrome, empty: Server) -> None:
    fresh.get(empty.url)
    fill(fresh, m="64", n="64", k="64", max_trials="3")
    press(fresh, "Tune")
    wait_for(fresh, "succeeded", ".facts")
    fresh.refresh()
    fresh.find_element(By.LINK_TEXT, "Can I believe it?").click()
    wait_for(fresh, "Can I believe it?", "h1")
    fresh.find_element(By.LINK_TEXT, "Why this config?").click()
    wait_for(fresh, "What limits it")
    fresh.get(empty.url)
    assert "What to do next" in text(fresh)
    assert complaints(fresh) == []


@pytest.mark.long
def test_signing_in_with_a_wrong_and_a_right_key_and_out(fresh: webdriver.Chrome, tmp_path: Path) -> None:
    guarded = start(tmp_path)
    try:
        with opened_database(guarded) as store, store.begin() as session:
            key = keys.create(session, "browser", frozenset({"tune"}))[1]
        fresh.get(f"{guarded.url}/view/jobs")
        wait_for(fresh, "Sign in", "h1")
        fill(fresh, key="tw_0000000000000000_wrong")
        press(fresh, "Sign in")
        wait_for(fresh, "not known here", "[role=alert]")
        fill(fresh, key=key)
        press(fresh, "Sign in")
        wait_for(fresh, "Which jobs ran?", "h1")
        assert fresh.execute_script("return document.cookie") == ""
        _forge(fresh, guarded)
        fresh.get(guarded.url)
        press(fresh, "Sign out")
        wait_for(fresh, "Sign in", "h1")
        fresh.get(guarded.url)
        wait_for(fresh, "Sign in", "h1")
    finally:
        finish(guarded)


def _forge(window: webdriver.Chrome, server: Server) -> None:
    """A form without the token is refused, and nothing starts."""
    window.get(server.url)
    window.execute_script("document.querySelectorAll('[name=token]').forEach((one) => { one.value = '0'; })")
    fill(window, m="64", n="64", k="64")
    press(window, "Tune")
    wait_for(window, "load the page again")
    window.get(f"{server.url}/view/jobs")
    assert "No such job" in text(window)
