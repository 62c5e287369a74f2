"""What the page says where it cannot answer: when to come again, and whose fault it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from store_samples import HOST, artifact, best, problem

from service.errors import Kind, Refusal
from service.results import explaining
from service.server.app import create_app
from service.settings import Settings
from service.web import html
from tuner.store import best as winners
from tuner.store import entities, jobs
from tuner.store.records import StoredBest


@pytest.fixture
def app(tmp_path: Path) -> Iterator[FastAPI]:
    made = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'tilewright.db'}"))
    with made.state.service.store.begin() as session:
        entities.put_artifact(session, artifact())
        entities.see_device(session, HOST)
        winners.put(session, best(problem()))
    yield made
    made.state.service.shared.close()
    made.state.service.store.close()


def test_a_busy_page_says_when_to_come_again(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise Refusal(Kind.PAGES_BUSY, "many ask; try again", retry_after=3)

    monkeypatch.setattr(type(app.state.service.shared), "get", busy)
    visitor = TestClient(app, base_url="http://127.0.0.1")
    for path in ("/view/coverage", "/view/roofline", "/view/results", f"/view/jobs/{'0' * 32}/knobs", "/"):
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "3"), path
        assert answer.headers["content-type"].startswith("text/html")
        assert "many ask; try again" in answer.text
    answer = visitor.get("/report")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")


def test_what_is_no_utf_8_is_told_escaped(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Refusal(Kind.NOT_FOUND, "\u00e9 \U0001f600 \\\udfff", members={"known": ["\ud800"]})

    monkeypatch.setattr(jobs, "get", refuse)
    answer = TestClient(app, base_url="http://127.0.0.1").get(f"/jobs/{'0' * 32}")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "\u00e9 \U0001f600 \\\\udfff"
    assert answer.json()["known"] == [r"\ud800"]


def stored(session: Session) -> StoredBest:
    return winners.exact(session, best(problem()).device_class, problem())[0]


def test_only_a_family_that_there_is_not_is_called_so(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("mc")

    with app.state.service.store.read() as session:
        found = stored(session)
        monkeypatch.setattr(explaining, "explain", broken)
        with pytest.raises(KeyError, match="mc"):
            explaining.explained(session, found)
        monkeypatch.setattr(explaining, "family_named", broken)
        with pytest.raises(Refusal, match="this release has no family host"):
            explaining.explained(session, found)


def test_another_family_is_shown_for_the_same_row_of_a_ladder() -> None:
    job = SimpleNamespace(id="0" * 32, device_class="lab")
    for m, link in ((16, '"?family=b&amp;m=16"'), (None, '"?family=b"')):
        assert link in html.page("families.html", job=job, names=["a", "b"], family="a", m=m)
