"""A fleet whose devices replay recorded spaces; jobs, claims, search and store are those of the service."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from sqlalchemy.orm import Session

from benchmarks.fleet.clock import VirtualClock
from service.engine.device_queue import LOOK_S
from tilewright.schema.job import JobStatus, TuneRequest
from tilewright.schema.trial import TrialResult
from tuner.job.context import JobContext
from tuner.job.loop import Loop
from tuner.job.progress import ProgressTracker
from tuner.job.selection import select_winner
from tuner.measure.race import RaceSamples
from tuner.measure.timing import SAMPLE_US
from tuner.replay.device import RecordedFamily, ReplayBench, ReplayBuilder
from tuner.replay.space import RecordedSpace
from tuner.search.search import open_search
from tuner.store import jobs
from tuner.store.database import Store
from tuner.store.queue import claims, owners
from tuner.store.records import JobRecord
from tuner.store.trials import JobRecorder

CALLERS = {"many": 5, "some": 2, "few": 1}  # how the jobs of a fleet divide among those who ask for them
FEWEST_JOBS = 4  # of a caller, for a statement about fairness


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What a fleet is to do.

    Attributes:
        spaces: recorded spaces of one device class; jobs take them in turn.
        jobs: number of jobs, all of them queued at the start.
        trials: measured trials of a job.
    """

    spaces: tuple[RecordedSpace, ...]
    jobs: int
    trials: int

    @property
    def device_class(self) -> str:
        """The class of all devices."""
        return self.spaces[0].device.device_class.id

    def submit(self, store: Store) -> dict[str, str]:
        """Queue the jobs, in turn over the callers by their shares; gives the caller of each id."""
        callers = [caller for caller, share in CALLERS.items() for _ in range(share)]
        of_job = {}
        for number in range(self.jobs):
            space = self.spaces[number % len(self.spaces)]
            request = TuneRequest(
                space.problem, families=(space.family,), max_trials=self.trials, seed=number
            )
            with store.begin() as session:
                caller = callers[number % len(callers)]
                of_job[jobs.submit(session, request, space.device, caller)[0].id] = caller
        return of_job


@dataclasses.dataclass(slots=True)
class Outcome:
    """The results of a fleet, to which devices add.

    Attributes:
        winners: for each job, optimum over the true time of its winner.
        trials: trials that were committed.
        worked: (caller, from, to) in seconds, for each job.
        device_s: seconds in which devices measured.
        seconds: until the last job ended.
    """

    winners: list[float] = dataclasses.field(default_factory=list)
    trials: int = 0
    worked: list[tuple[str, float, float]] = dataclasses.field(default_factory=list)
    device_s: float = 0.0
    seconds: float = 0.0

    @property
    def fairness(self) -> float | None:
        """The smallest over the largest number of device seconds that a caller got, while every caller had a
        waiting job; 1 is fair. None if there are too few jobs."""
        starts: dict[str, list[float]] = {caller: [] for caller in CALLERS}
        for caller, start, _ in self.worked:
            starts[caller].append(start)
        if min(map(len, starts.values())) < FEWEST_JOBS:
            return None
        # NOTE: from the last start of a caller's jobs on, none of them waits.
        until = min(map(max, starts.values()))
        seconds = dict.fromkeys(CALLERS, 0.0)
        for caller, start, end in self.worked:
            seconds[caller] += max(0.0, min(end, until) - start)
        return min(seconds.values()) / max(seconds.values())


class CountedStore:
    """A store whose transactions a clock counts."""

    def __init__(self, store: Store, clock: VirtualClock) -> None:
        self._store, self._clock = store, clock

    @contextlib.contextmanager
    def begin(self) -> Iterator[Session]:
        with self._clock.transaction() as serve, self._store.begin() as session:
            serve(session)
            yield session

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        with self._clock.transaction() as serve, self._store.read() as session:
            serve(session)
            yield session


class ClockedBench(ReplayBench):
    """A recorded device that takes its time, and extends the lease of its job as the service does."""

    def __init__(self, space: RecordedSpace, seed: int, fleet: Fleet, job: JobRecord) -> None:
        super().__init__(space, seed)
        self._fleet, self._job = fleet, job
        self._renewed = fleet.clock.now

    def trial(self, *given: Any, **named: Any) -> TrialResult:
        """The recorded result, after its recorded seconds."""
        result = super().trial(*given, **named)
        self._work(result.check_s + result.measure_s)
        return result

    def race(self, *given: Any, **named: Any) -> RaceSamples:
        """The recorded samples, after the seconds that so many samples take."""
        samples = super().race(*given, **named)
        self._work(sum(max(SAMPLE_US, one) for row in samples.samples_us for one in row) / 1e6)
        return samples

    def _work(self, seconds: float) -> None:
        fleet, job = self._fleet, self._job
        fleet.outcome.device_s += seconds
        fleet.clock.spend(seconds)
        if fleet.clock.now - self._renewed > LOOK_S:
            self._renewed = fleet.clock.now
            with fleet.store.begin() as session:
                claims.renew(session, job.id, job.attempt)


class Fleet:
    """Devices that claim jobs from one database until none waits; ``callers`` has the caller of each job."""

    def __init__(self, load: Load, callers: Mapping[str, str], store: Store, clock: VirtualClock) -> None:
        self._load, self._callers = load, callers
        self._spaces = {one.problem: (one, RecordedFamily(one)) for one in load.spaces}
        self.clock = clock
        self.store = cast(Store, CountedStore(store, clock))
        self.outcome = Outcome()

    def run(self, devices: int) -> Outcome:
        """Let so many devices work."""
        self.outcome.seconds = self.clock.run([self._device] * devices)
        return self.outcome

    def _device(self) -> None:
        owner, device_class = owners.new_owner(), self._load.device_class
        while True:
            with self.store.begin() as session:
                claims.requeue_interrupted(session, device_class, owner)
                job = claims.claim(session, device_class, owner)
            if job is None:
                return
            started = self.clock.now
            self._tune(job)
            self.outcome.worked.append((self._callers[job.id], started, self.clock.now))

    def _tune(self, job: JobRecord) -> None:
        request, (space, family) = job.request, self._spaces[job.request.problem]
        recorder = JobRecorder(self.store, job.id)
        bench = ClockedBench(space, request.seed, self, job)
        context = JobContext(request, job.id, bench, ReplayBuilder(space), recorder, threading.Event())
        where = space.problem, space.device
        search = open_search([family], *where, request.budget, request.seed, (), request.sampler)
        tracker = ProgressTracker(request, recorder, search, time.monotonic())
        Loop(context, search, tracker).run()
        # Of its own search, as if no job had tuned its problem.
        won = select_winner(context, tracker.trials, tracker.artifacts)
        if won:
            recorder.set_best(won.best, won.artifact)
            self.outcome.winners.append(space.fraction(space.row(won.best.config)))
        tracker.publish("done")
        with self.store.begin() as session:
            claims.hold(session, job.id, job.attempt)
            jobs.finish(session, job.id, JobStatus.SUCCEEDED if won else JobStatus.FAILED)
        self.outcome.trials += len(tracker.trials)
