"""The tuning loop: compile ahead, measure in order, record, learn."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from concurrent import futures
from concurrent.futures import Future
from typing import TYPE_CHECKING

from tilewright.trial import Trial
from tuner.context import JobContext
from tuner.ledger import Ledger, timed
from tuner.search import MEASURED, Proposal, Search

if TYPE_CHECKING:
    from tuner.builder import Compiled

ASKS_PER_TRIAL = 4
_POLL_S = 0.1


class Loop:
    """Keeps compiles ahead of the device and takes proposals in the order they were asked for.

    Work on a proposal is a running compilation, or the trial that an interrupted run recorded.
    """

    def __init__(self, context: JobContext, search: Search, ledger: Ledger) -> None:
        self._context = context
        self._search = search
        self._ledger = ledger
        self._known = deque(context.recorder.trials())
        self._open: deque[tuple[Proposal, Trial | Future[Compiled]]] = deque()

    def run(self) -> None:
        """Until the budget is spent, the space is exhausted, or the job is cancelled."""
        try:
            self._ledger.publish("search")
            self._refill()
            while self._open and not self._context.cancelled.is_set():
                self._finish_oldest()
                self._refill()
        finally:
            for _, work in self._open:
                if isinstance(work, Future):
                    work.cancel()

    def _refill(self) -> None:
        # NOTE: on the host compilers would run on the very cores being measured, so there a whole
        # batch is compiled while nothing is measured.
        if self._on_host and self._open:
            return
        while self._may_ask() and self._ask():
            pass

    def _may_ask(self) -> bool:
        search, limit = self._search, self._context.request.max_seconds
        return (
            search.ready
            and search.measured + search.in_flight < search.budget
            and search.asked < ASKS_PER_TRIAL * search.budget
            and (not limit or bool(self._known) or not search.asked or self._ledger.elapsed_s < limit)
        )

    def _ask(self) -> bool:
        if self._known:
            known = self._known.popleft()
            self._open.append((self._search.replay(known.config, known.origin), known))
            return True
        proposal = self._search.ask()
        if proposal:
            self._open.append((proposal, self._context.submit(proposal.config)))
        return proposal is not None

    def _finish_oldest(self) -> None:
        proposal, work = self._open.popleft()
        if isinstance(work, Trial):
            trial = work
            self._ledger.replay(trial)
        else:
            compiled = self._compiled(work)
            if compiled is None:
                return
            trial = self._try(proposal, compiled)
            self._ledger.add(trial, compiled.artifact)
            self._ledger.publish("search")
        value_us = timed(trial).median_us if trial.outcome in MEASURED else None
        self._search.tell(proposal, trial.outcome, value_us)

    def _compiled(self, oldest: Future[Compiled]) -> Compiled | None:
        """Wait for a compilation, on the host for the whole batch; None where the job was cancelled."""
        batch = [work for _, work in self._open if isinstance(work, Future)] if self._on_host else []
        started = time.monotonic()
        while futures.wait([oldest, *batch], timeout=_POLL_S).not_done:
            if self._context.cancelled.is_set():
                oldest.cancel()
                return None
        self._ledger.idle(time.monotonic() - started)
        return oldest.result()

    def _try(self, proposal: Proposal, compiled: Compiled) -> Trial:
        trial = Trial(
            number=proposal.number,
            config=proposal.config,
            outcome=compiled.outcome,
            message=compiled.message,
            compile_s=compiled.seconds,
            origin=proposal.origin,
        )
        artifact, context = compiled.artifact, self._context
        if artifact is None:
            return trial
        incumbent_us, timeout_s = self._ledger.incumbent_us, context.trial_timeout_s
        result = context.bench.trial(artifact, context.problem, incumbent_us, timeout_s)
        method = result.timing.method if result.timing else ""
        return dataclasses.replace(
            trial,
            outcome=result.outcome,
            message=result.message,
            timing=result.timing,
            artifact=artifact.digest,
            resources=artifact.resources,
            provenance=context.provenance(artifact, method),
            check_s=result.check_s,
            measure_s=result.measure_s,
        )

    @property
    def _on_host(self) -> bool:
        return self._context.device.kind == "host"
