"""``Canary``: an idle device measures a few winners again, whose times may have shifted, and tries kernels
with which a GEMM failed."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from service.metrics import Metrics
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError
from tilewright.schema.codec import encode
from tilewright.schema.config import Config
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Timing, Trial, TrialResult
from tuner.devices.base import Conditions
from tuner.job.context import provenance, trial_timeout_s
from tuner.measure.interleave import mean_of_known
from tuner.measure.operands import why_too_large
from tuner.measure.stats import median
from tuner.store import entities
from tuner.store.access import audit
from tuner.store.access.audit import Action
from tuner.store.database import Store, lock_results
from tuner.store.faults import drift, quarantine
from tuner.store.faults.drift import Cause, Reading, Watched
from tuner.store.records import utc_now
from tuner.workers.bench import Bench
from tuner.workers.recovery import DeviceAway

WINNERS = 3
TRIALS = 5  # of a reading
MOST_S = 0.5  # of one trial, when it was tuned: a new job may wait that long
IDLE_S = 600.0  # before the first trial
SECOND_LOOK_S = 60.0  # after a reading that shifted: only a shift that stays is reported
MOST_ACCUSED = 1000  # kernels of failed GEMMs, until the service starts anew
_TIMEOUT_S = 20.0
log = logging.getLogger("tilewright.canary")


class Canary:
    """Reads the times of a few winners once in ``canary_hours``, and after a change of the driver.

    Later readings of a winner on a device are compared with the first one.
    """

    def __init__(self, store: Store, bench: Bench, metrics: Metrics, settings: Settings) -> None:
        self._store, self._bench, self._metrics = store, bench, metrics
        self._every = timedelta(hours=settings.canary_hours)
        self._device, self._device_class = bench.known_as[:200], bench.spec.device_class.id
        self._idle_since = self._look_at = time.monotonic()
        self._left: list[Watched] = []
        self._timings: list[Timing] = []
        self._suspects: set[str] = set()
        self._accused: dict[tuple[str, GemmProblem], tuple[Config, Artifact] | None] = {}  # None: was tried
        self._broken_off = False
        self._passed_at: datetime | None = None  # when the last winner of a pass was done

    def disturb(self) -> None:
        """Break off, because a job takes the device. The winners in progress are read from the start later,
        if they are still winners then."""
        self._idle_since = time.monotonic()
        self._break_off()

    def step(self) -> bool:
        """Run one trial if it is time to; False if not."""
        if self._try_accused():
            return True
        idle_s = time.monotonic() - max(self._idle_since, self._bench.used)
        if not self._every or idle_s < IDLE_S or time.monotonic() < self._look_at:
            return False
        if not self._left:
            self._left = self._due()
        if self._left and self._alone():
            self._measure(self._left[0])
        return bool(self._left)

    def _alone(self) -> bool:
        """Whether no other process uses the device; if one does, it is looked at again a while later."""
        if not self._bench.interference():
            return True
        self._look_at = time.monotonic() + SECOND_LOOK_S
        self._break_off()
        return False

    def _break_off(self) -> None:
        self._broken_off = self._broken_off or bool(self._left)
        self._timings.clear()
        self._left.clear()

    def _due(self) -> list[Watched]:
        """The winners to read now; none if they were read recently."""
        self._look_at = time.monotonic() + SECOND_LOOK_S
        with self._store.read() as session:
            last = drift.last_look(session, self._device)
            read = last and utc_now() - last[0] < self._every and last[1] == self._bench.driver
            # A pass in which every winner failed leaves no reading.
            passed = self._passed_at is not None and utc_now() - self._passed_at < self._every
            recent = (read or passed) and not self._broken_off
            if recent and not self._suspects:
                return []
            found = drift.to_watch(session, self._device, self._device_class, MOST_S, WINNERS)
        self._suspects &= {one.artifact for one in found}
        self._broken_off = False
        return [one for one in found if not recent or one.artifact in self._suspects]

    def _done(self) -> None:
        """Take the winner at hand off the list."""
        self._timings.clear()
        self._left.pop(0)
        if not self._left:
            self._passed_at = utc_now()

    def _measure(self, winner: Watched) -> None:
        with self._store.read() as session:
            data = entities.get_artifact(session, winner.artifact)
        if data is None:
            self._done()
            return
        try:
            artifact = Artifact.from_bytes(data, winner.artifact)
        except ArtifactError as error:  # else no other winner would be read, and the device stay down
            self._done()
            log.warning("%s is not measured again: %s", winner.problem, error)
            return
        result = self._bench.trial(artifact, winner.problem, None, _TIMEOUT_S)
        if result.timing:
            self._timings.append(result.timing)
            if len(self._timings) == TRIALS:
                self._settle(winner)
        else:
            self._done()
            log.warning("%s is %s now: %s", winner.problem, result.outcome, result.message)
            if result.own_fault:
                self._quarantine(winner.problem, winner.config, artifact, result)

    def suspect(self, problem: GemmProblem, config: Config, artifact: Artifact) -> None:
        """Have a kernel with which a GEMM failed tried again once no job wants the device; from any thread.

        Each kernel once for each problem; the last ones of many are forgotten.
        """
        key = artifact.digest, problem
        if len(self._accused) < MOST_ACCUSED and not why_too_large(problem, self._bench.spec):
            self._accused.setdefault(key, (config, artifact))

    def _try_accused(self) -> bool:
        """Try one kernel again, and quarantine its config if it fails by its own fault; False if there is
        none."""
        for (digest, problem), waiting in list(self._accused.items()):
            if waiting:
                config, artifact = waiting
                self._accused[digest, problem] = None
                limit_s = trial_timeout_s(problem, self._bench.spec)
                try:
                    result = self._bench.trial(artifact, problem, None, limit_s)
                except DeviceAway:  # by the failure itself, as often: to be tried once it is back
                    self._accused[digest, problem] = waiting
                    raise
                log.warning("a GEMM failed with %s on %s; a trial is %s", config, problem, result.outcome)
                if result.own_fault:
                    self._quarantine(problem, config, artifact, result)
                return True
        return False

    def _quarantine(
        self, problem: GemmProblem, config: Config, artifact: Artifact, result: TrialResult
    ) -> None:
        was = provenance(artifact, self._bench.spec, self._bench.driver)
        broken = Trial(
            0, config, outcome=result.outcome, message=result.message, provenance=was, origin="final"
        )
        with self._store.begin() as session:
            lock_results(session)
            quarantine.put(session, broken, quarantine.Evidence(problem, None, self._bench.known_as))

    def _settle(self, winner: Watched) -> None:
        """Store a reading. If it shifted, the winner is first read again a while later."""
        now = reading(self._timings, self._bench.conditions(), self._bench.driver)
        self._done()
        if winner.reference and winner.reference.method != now.method:
            if winner.cause:  # the mark stays until the next race: a reading of another method cannot end it
                return
            winner = dataclasses.replace(winner, reference=None)
        shifted = winner.reference and drift.cause_of(winner.reference, now) != winner.cause
        if shifted and winner.artifact not in self._suspects:
            self._suspects.add(winner.artifact)
            return
        self._suspects.discard(winner.artifact)
        with self._store.begin() as session:
            lock_results(session)
            cause = drift.keep(session, self._device, self._device_class, winner, now)
            if cause is not winner.cause:
                self._tell(session, winner, now, cause)
        found = cause.value if cause else "steady" if winner.reference else "first"
        self._metrics.canary.labels(self._bench.name, found).inc()

    def _tell(self, session: Session, winner: Watched, now: Reading, cause: Cause | None) -> None:
        """The event of a shift, or of its end."""
        before = winner.reference or now
        drift = {"cause": cause and cause.value, "ratio": now.median_us / before.median_us}
        target = f"{winner.problem} on {self._bench.known_as}"
        both = {"before": encode(before), "now": encode(now)}
        audit.note(session, audit.SERVICE, Action.DRIFT, target, **drift, **both)
        log.warning(
            "%s takes %.3f times as long as before: %s", target, drift["ratio"], cause or "steady again"
        )


def reading(timings: Sequence[Timing], conditions: Conditions, driver: str) -> Reading:
    """The reading of some trials."""
    return Reading(
        median_us=median([one.median_us for one in timings]),
        low_us=min(one.low_us for one in timings),
        high_us=max(one.high_us for one in timings),
        mhz=mean_of_known([one.mhz for one in timings]),
        watts=mean_of_known([one.watts for one in timings]),
        driver=driver,
        method=timings[0].method,
        **encode(conditions),
    )
