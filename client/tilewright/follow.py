"""Sans-IO follower of a job's event stream: what to ask next, and what an event means."""

from __future__ import annotations

import time
from collections.abc import Callable

from tilewright import calls, wire
from tilewright.errors import ServiceUnreachable

OnProgress = Callable[["wire.ProgressView"], None]
READ_TIMEOUT_S = 45.0  # NOTE: three times the service's heartbeat; less would drop a quiet stream
_PATIENCE_S = 60.0
_PAUSE_S = 0.5


class Follower:
    """Follows one job over as many connections as it takes.

    Attributes:
        done: the job has ended.
    """

    def __init__(self, job_id: str, on_progress: OnProgress | None) -> None:
        self.done = False
        self._job_id = job_id
        self._on_progress = on_progress
        self._last_id = ""
        self._last_word = time.monotonic()

    def call(self) -> calls.Call[None]:
        """The request that resumes the stream."""
        return calls.events(self._job_id, self._last_id)

    def take(self, kind: str, data: str, event_id: str) -> None:
        """An event arrived."""
        self._last_word = time.monotonic()
        self._last_id = event_id or self._last_id
        self.done = self.done or kind == "done"
        if kind == "progress" and self._on_progress:
            self._on_progress(wire.ProgressView.model_validate_json(data))

    def pause(self, reason: str) -> float:
        """Seconds to wait before the next connection after one ended early.

        Raises:
            ServiceUnreachable: nothing was heard for a minute.
        """
        silence = time.monotonic() - self._last_word
        if silence > _PATIENCE_S:
            raise ServiceUnreachable(
                f"lost the events of job {self._job_id} for {silence:.0f} s ({reason}); the job goes on, "
                "ask for it again with job()"
            )
        return _PAUSE_S
