"""``Follower``: follows the events of a tuning job, over several connections if needed."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import TypeVar

from tilewright.errors import InvalidProblem, ServiceUnreachable
from tilewright.http.calls import ONE_BYTES, Call, path_of
from tilewright.schema.codec import decode
from tilewright.schema.job import JobProgress

R = TypeVar("R")
OnProgress = Callable[[JobProgress], None]
OnWaiting = Callable[[str | None], None]
QUIET_S = 45.0  # NOTE: three times the service's heartbeat; less would drop a quiet stream
_PATIENCE_S = 60.0
_PAUSE_S = 0.5


def check_callbacks(on_progress: OnProgress | None, on_waiting: OnWaiting | None) -> None:
    """Refuse what cannot be called.

    Raises:
        InvalidProblem: one of them is neither a function nor None.
    """
    given = {"on_progress": (on_progress, "a JobProgress"), "on_waiting": (on_waiting, "a reason or None")}
    for name, (callback, argument) in given.items():
        if callback is not None and not callable(callback):
            raise InvalidProblem(f"{name} must be a function of {argument}, such as print; got {callback!r}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Waiting:
    """What keeps a job from going on; None if nothing does."""

    waiting: str | None


class Follower:
    """Follows one job to its end.

    Attributes:
        done: whether the job has ended.
    """

    def __init__(
        self, job_id: str, on_progress: OnProgress | None = None, on_waiting: OnWaiting | None = None
    ) -> None:
        """``on_progress`` is called with each progress, ``on_waiting`` when the reason why the job cannot go
        on changes, with None once it can."""
        check_callbacks(on_progress, on_waiting)
        self.done = False
        self._job_id, self._on_progress, self._on_waiting = job_id, on_progress, on_waiting
        self._waiting: str | None = None
        self._last_id = ""
        self._heard = time.monotonic()
        self._pause = 0.0
        self._pending = b""

    def call(self) -> Call[None]:
        """``GET /jobs/{id}/events``; its body is the stream of events after the last one received."""
        headers = {"Accept": "text/event-stream"}
        if self._last_id:
            headers["Last-Event-ID"] = self._last_id
        path, self._pending = path_of("jobs", self._job_id, "events"), b""
        return Call(
            "GET",
            path,
            lambda _: None,
            headers=headers,
            answer_s=QUIET_S,
            delay_s=self._pause,
            sink=self.feed,
        )

    def feed(self, chunk: bytes) -> None:
        """Take a piece of the stream: events end with an empty line."""
        *events, self._pending = (self._pending + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        if len(self._pending) > ONE_BYTES:
            raise ServiceUnreachable("the service sends an event without an end; check the URL")
        for event in events:
            self._take(_fields(event))

    def ended_early(self, reason: str) -> None:
        """Note that a connection ended before the job did; the next call comes after a pause.

        Raises:
            ServiceUnreachable: nothing arrived for a minute, not even a heartbeat.
        """
        self._pause = _PAUSE_S
        silence = time.monotonic() - self._heard
        if silence > _PATIENCE_S:
            raise ServiceUnreachable(
                f"lost the events of job {self._job_id} for {silence:.0f} s ({reason}); the job goes on, "
                "ask for it again with job()"
            )

    def _take(self, event: dict[str, str]) -> None:
        name = event.get("event")
        progress = _read(JobProgress, event) if name == "progress" and self._on_progress else None
        waiting = _read(_Waiting, event).waiting if name == "waiting" and self._on_waiting else self._waiting
        if name or event.get(""):  # a heartbeat is a comment, which is a field without a name
            self._heard = time.monotonic()
        self._last_id = event.get("id") or self._last_id
        self.done = self.done or name == "done"
        if progress and self._on_progress:
            self._on_progress(progress)
        if waiting != self._waiting and self._on_waiting:
            self._waiting = waiting
            self._on_waiting(waiting)


def _fields(event: bytes) -> dict[str, str]:
    fields = (line.partition(":") for line in event.decode("utf-8", "replace").split("\n"))
    return {name: value.removeprefix(" ") for name, _, value in fields}


def _read(kind: type[R], event: dict[str, str]) -> R:
    try:
        return decode(kind, json.loads(event["data"]))
    except (KeyError, ValueError, RecursionError) as error:
        raise ServiceUnreachable(
            f"the service sends an event that is none of tilewright's ({error}); check the URL"
        ) from error
