"""The live stream of a job's page."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from typing import Any

import anyio

from service.http.pages import now


def test_a_trial_that_is_stored_as_a_page_begins_to_follow_is_told_once(monkeypatch) -> None:
    """Its event comes although the first points have it already."""

    def event(number: int) -> Any:
        return SimpleNamespace(kind="trial", data={"number": number, "median_us": 9.0, "outcome": "ok"})

    async def news() -> Any:
        return SimpleNamespace(events=[event(0), event(1)], status="succeeded")

    async def still() -> bool:
        return True

    follower = SimpleNamespace(ended=None, news=news)
    service: Any = SimpleNamespace(
        events=SimpleNamespace(follow=lambda *_: contextlib.nullcontext(follower)),
        watch=SimpleNamespace(known=lambda _: None, now=lambda *_: None),
    )
    monkeypatch.setattr(now, "_newest", lambda *_: 0)
    monkeypatch.setattr(now, "_largest", lambda *_: 64)
    monkeypatch.setattr(now, "_missed", lambda *_: [[0, 9.0, "ok"]])
    monkeypatch.setattr(now, "_panel", lambda _: "panel")

    async def told() -> list[int]:
        stream = now.follow("job", service, SimpleNamespace(still=still))  # type: ignore[arg-type]
        points = [json.loads(one.raw_data or "") async for one in stream if one.event == "points"]
        return [number for of_event in points for number, *_ in of_event]

    assert anyio.run(told) == [0, 1]
