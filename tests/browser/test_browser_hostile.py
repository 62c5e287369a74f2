"""Names that others wrote, in results of an import: shown as text, never run, and never in the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import Server, finish, start
from browser import beyond, complaints, drawn, foreign_requests, resize
from selenium import webdriver
from selenium.webdriver.common.by import By
from sqlalchemy.orm import Session
from store_samples import HOST, artifact, best, config, problem, request, trial

from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.trial import Baseline
from tuner.store import best as winners
from tuner.store import entities, jobs, trials
from tuner.store.database import Store

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = '"><img src=x onerror="document.title=\'owned\'">'
CLOSING = "</script></title></textarea><svg onload=document.title='owned'>"
TURNED = "\u202egnp.exe\u2066 right to left"
LONG = "x" * 10_000
HOSTILE = (IMAGE, LONG, SCRIPT, CLOSING, TURNED, "{{ 7 * 7 }}", "javascript:document.title='owned'")
OF_ALL = ("/", "/view/results", "/view/coverage", "/view/roofline", "/view/compare?what=jobs")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A store whose every text is hostile, as an import of another store may be."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    store = Store.open(f"sqlite:///{folder / 'tilewright.db'}")
    store.migrate()
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for index, name in enumerate(HOSTILE):
            _put(session, index, name)
    store.close()
    running = start(folder)
    yield running
    finish(running)


def _put(session: Session, index: int, name: str) -> None:
    device = dataclasses.replace(HOST, name=f"{name[:150]} {index}")
    job, _ = jobs.submit(session, request(64 + index), device)
    knobs = {"mc": 16, name[:60]: name[:1000]}
    odd = Config.of("host", knobs)
    tried = dataclasses.replace(trial(0), config=odd, message=name, origin="search")
    trials.add(session, job.id, tried)
    more = [dataclasses.replace(trial(number), config=config(number)) for number in range(1, 4)]
    for one in more:
        trials.add(session, job.id, one)
    where = dataclasses.replace(tried.provenance, compiler=name, driver=name, package=name)  # type: ignore[type-var]
    found = dataclasses.replace(
        best(problem(64 + index), device),
        config=odd,
        ties=(odd,),
        baseline=Baseline(name, 2.5, {name: name}),
        timing=dataclasses.replace(best(problem()).timing, method=name, disturbed=name if index % 2 else ""),
        provenance=where,
        job_id=job.id,
    )
    jobs.set_result(session, job.id, found)
    winners.put(session, found)
    jobs.close_job(session, job.id, JobStatus.FAILED, name)


def views_of(window: webdriver.Chrome, server: Server, names: range) -> list[str]:
    """The views that show only one of the texts each."""
    window.get(f"{server.url}/view/jobs")
    links = window.find_elements(By.CSS_SELECTOR, "td a")
    found = [str(link.get_attribute("href")).removeprefix(server.url) for link in links]
    assert len(found) == len(HOSTILE)
    of_jobs = [f"{found[-1 - name]}{view}" for name in names for view in ("", "/knobs", "/parallel")]
    return of_jobs + [f"/view/results/{name + 1}{view}" for name in names for view in ("", "/why")]


@pytest.mark.long
@pytest.mark.parametrize("names", [range(2), range(2, len(HOSTILE))])
def test_hostile_names_are_text_and_do_not_widen_the_page(
    window: webdriver.Chrome, hostile: Server, names: range
) -> None:
    for path in (*(OF_ALL if 0 in names else ()), *views_of(window, hostile, names)):
        window.get(hostile.url + path)
        drawn(window)
        assert "owned" not in window.title, path
        assert complaints(window) == [], path
        assert foreign_requests(window, hostile.url) == [], path
        strange = "main script:not([type='application/json']), main img, main svg"
        assert window.find_elements(By.CSS_SELECTOR, strange) == [], path
        assert "\u202e" not in window.execute_script("return document.body.innerText"), path
        assert beyond(window, 360) <= 0, path
        resize(window, 1280)
