"""Trials of a running job on other devices: slots that helpers make and the holder of the job fills.

An idle device that helps a job makes slots (``wanted``). The holder of the job offers a trial in each
(``offered``); the helper starts it (``running``) and answers with the finished trial (``done``), which the
holder commits as one of the job's before it fills the slot again.

Two fences keep a trial from counting twice. ``attempt`` is the number of the job's claim, as for every write
of a job. ``turn`` grows whenever the holder fills or empties the slot, so that a late answer to an earlier
trial finds no slot. If the holder dies, the next claim takes over the answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, CursorResult, case, delete, func, insert, select, update
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact
from tilewright.errors import TilewrightError
from tilewright.schema.codec import encode
from tilewright.schema.config import Config
from tilewright.schema.job import JobStatus
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Trial
from tuner.store import database, entities, jobs
from tuner.store.database import JobTaken, Patience, Store, at_once
from tuner.store.models import JobRow, TrialSlotRow
from tuner.store.queue import claims, owners
from tuner.store.records import JobRecord, Unreadable, log_unreadable, of_row

R = TypeVar("R")
SEARCH = "search"  # the phase of a job that has trials to give away


class SlotState(StrEnum):
    """Where a slot stands; ``returned``: its helper took up a job of its own."""

    WANTED = "wanted"
    OFFERED = "offered"
    RUNNING = "running"
    DONE = "done"
    RETURNED = "returned"


@dataclasses.dataclass(frozen=True, slots=True)
class TrialTask:
    """A trial for a helper.

    Attributes:
        number, config, origin: as in the trial that it becomes.
        problem: of the job, or of the row of its ladder.
        incumbent_us: the lowest median so far on the job's device; None before the first complete trial.
        anchor: digest of the kernel that relates both devices.
        anchor_us: its median on the job's device.
    """

    number: int
    config: Config
    origin: str
    problem: GemmProblem
    incumbent_us: float | None
    anchor: str
    anchor_us: float


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Room for a trial on another device.

    Attributes:
        id, turn: the slot, and a count that tells its trials apart.
        state: where it stands.
        helper: the owner's name of the device that made it.
        lost: its helper died, or was silent for longer than its lease.
        task: what is to be tried; None while the slot is wanted.
        trial: the answer of a slot that is done.
    """

    id: int
    turn: int
    state: SlotState
    helper: str
    lost: bool
    task: TrialTask | None
    trial: Trial | None


_GIVEN = (SlotState.OFFERED, SlotState.RUNNING)


class OtherRelease(TilewrightError):
    """The jobs that could be helped are tuned by another release."""


def helpable(session: Session, device_class: str, helper: str) -> list[str]:
    """The running jobs of a device class that are searching, those with the fewest slots first; writes
    nothing.

    Raises:
        OtherRelease: all of them run on devices with another release, whose trials would not compare.
    """
    mine = select(func.count()).where(TrialSlotRow.job_id == JobRow.id).scalar_subquery()
    query = select(JobRow.id, JobRow.owner, JobRow.progress).where(
        JobRow.device_class == device_class,
        JobRow.status == JobStatus.RUNNING,
        JobRow.cancel_requested.is_(False),
    )
    searching = [
        (job_id, owners.release_of(owner or ""))
        for job_id, owner, progress in session.execute(query.order_by(mine, JobRow.id))
        if isinstance(progress, dict) and progress.get("phase") == SEARCH
    ]
    here = owners.release_of(helper)
    found = [job_id for job_id, release in searching if release == here]
    if searching and not found:
        job_id, release = searching[0]
        raise OtherRelease(
            f"job {job_id} is tuned by {release or 'another release'} and this is {here}: use one release on "
            "all devices, so that they help each other"
        )
    return found


def join(session: Session, device_class: str, helper: str, slots: int, lease_s: float) -> JobRecord | None:
    """Make slots with the first job that is :func:`helpable`; None if there is none.

    Raises:
        OtherRelease: as :func:`helpable`.
    """
    for job_id in helpable(session, device_class, helper):
        try:
            job = jobs.known(session, job_id)
            claims.hold(session, job_id, job.attempt)
        except Unreadable as error:
            log_unreadable(str(error))
        except JobTaken:
            continue  # it ended since
        else:
            values = {"job_id": job_id, "attempt": job.attempt, "helper": helper, "turn": 0}
            values |= {"state": SlotState.WANTED, "lease_until": database.ahead(session, lease_s)}
            for _ in range(slots):
                session.execute(insert(TrialSlotRow).values(values))
            return job
    return None


def held(session: Session, helper: str) -> list[Slot]:
    """The slots of a helper, oldest trial first."""
    return _found(session, TrialSlotRow.helper == helper)


def start(session: Session, slot: Slot) -> bool:
    """Begin with the trial of a slot; False if it was withdrawn."""
    return _change(session, slot, SlotState.OFFERED, {"state": SlotState.RUNNING})


def answer(session: Session, slot: Slot, trial: Trial, artifact: Artifact | None) -> bool:
    """Store the finished trial of a slot and its kernel. Returns False and stores nothing if the trial was
    withdrawn: it does not count then."""
    values = {"state": SlotState.DONE, "trial": encode(trial)}
    kept = _change(session, slot, SlotState.RUNNING, values)
    if kept and artifact is not None:
        entities.put_artifact(session, artifact)
    return kept


def leave(session: Session, helper: str) -> None:
    """Give back what a helper has not answered; its answers stay for the holder of the job."""
    mine = TrialSlotRow.helper == helper
    session.execute(delete(TrialSlotRow).where(mine, TrialSlotRow.state == SlotState.WANTED))
    given = TrialSlotRow.state.in_(_GIVEN)
    values = {
        "state": case((given, SlotState.RETURNED), else_=TrialSlotRow.state),
        "turn": TrialSlotRow.turn + case((given, 1), else_=0),
        "lease_until": database.ahead(session),
    }
    session.execute(update(TrialSlotRow).where(mine).values(values))


def renew(session: Session, helper: str, lease_s: float) -> None:
    """Keep the slots of a helper for ``lease_s`` seconds from now."""
    until = {"lease_until": database.ahead(session, lease_s)}
    session.execute(update(TrialSlotRow).where(TrialSlotRow.helper == helper).values(until))


def _change(session: Session, slot: Slot, was: SlotState, values: dict[str, Any]) -> bool:
    same = (TrialSlotRow.id == slot.id) & (TrialSlotRow.turn == slot.turn) & (TrialSlotRow.state == was)
    return _count(session, update(TrialSlotRow).where(same).values(values)) == 1


def _count(session: Session, statement: Any) -> int:
    found = session.execute(statement, execution_options={"synchronize_session": False})
    return found.rowcount if isinstance(found, CursorResult) else 0


def _found(session: Session, which: ColumnElement[bool]) -> list[Slot]:
    late = (TrialSlotRow.lease_until < database.ahead(session)).label("late")
    columns = (TrialSlotRow.id, TrialSlotRow.turn, TrialSlotRow.state, TrialSlotRow.helper)
    query = select(*columns, TrialSlotRow.task, TrialSlotRow.trial, late).where(which)
    return [_slot(row) for row in session.execute(query.order_by(TrialSlotRow.id))]


def _slot(row: Any) -> Slot:
    return of_row(Slot, row, lost=bool(row.late) or owners.is_gone(row.helper))


class SlotBoard:
    """The slots of a claimed job, for the one that holds it; each call is one transaction, which ``patience``
    runs.

    Belongs to one claim: a later claim finds none of its slots, and takes their answers over.
    """

    def __init__(
        self,
        store: Store,
        job: JobRecord,
        patience: Patience = at_once,
    ) -> None:
        self._store = store
        self._job_id, self._attempt = job.id, job.attempt
        self._patience = patience

    @property
    def resumed(self) -> bool:
        """Whether the job was claimed before."""
        return self._attempt > 1

    def look(self) -> list[Slot]:
        """All slots, the oldest first."""
        return self._read(lambda session: _found(session, self._mine()))

    def offer(self, slot: Slot, task: TrialTask) -> Slot | None:
        """Put a trial into a slot that is wanted, or whose answer is committed; None if the slot is gone."""
        filled = dataclasses.replace(slot, turn=slot.turn + 1, state=SlotState.OFFERED, task=task, trial=None)
        values = {"state": filled.state, "turn": filled.turn, "task": encode(task), "trial": None}
        offered = self._write(lambda session: _change(session, slot, slot.state, values))
        return filled if offered else None

    def withdraw(self, slots: Sequence[Slot]) -> list[Slot]:
        """Delete slots and return those deleted; no answer to them counts any more. Slots whose trial was
        begun or answered since the last look stay."""

        def withdraw(session: Session) -> list[Slot]:
            gone = []
            for slot in sorted(slots, key=lambda slot: slot.id):
                same = (TrialSlotRow.turn == slot.turn) & (TrialSlotRow.state == slot.state)
                which = (TrialSlotRow.id == slot.id) & same
                if _count(session, delete(TrialSlotRow).where(which)):
                    gone.append(slot)
            return gone

        return self._write(withdraw)

    def kernel(self, digest: str) -> Artifact | None:
        """A kernel that a helper built."""
        data = self._read(lambda session: entities.get_artifact(session, digest))
        return None if data is None else Artifact.from_bytes(data)

    def empty(self) -> None:
        """Set all slots to ``wanted`` again; answers that arrive later do not count."""
        values = {"state": SlotState.WANTED, "turn": TrialSlotRow.turn + 1, "task": None, "trial": None}
        self._execute(update(TrialSlotRow).where(self._mine()).values(values))

    def close(self) -> None:
        """Delete all slots: the job has no more trials to give away."""
        self._execute(delete(TrialSlotRow).where(self._mine()))

    def inherited(self) -> list[Trial]:
        """What helpers answered to earlier claims of the job, which did not commit it."""
        done = self._earlier() & (TrialSlotRow.state == SlotState.DONE)
        return [slot.trial for slot in self._read(lambda session: _found(session, done)) if slot.trial]

    def withdraw_earlier(self) -> None:
        """Delete the slots of earlier claims that have no answer; late answers to them count for nothing."""
        self._execute(delete(TrialSlotRow).where(self._earlier(), TrialSlotRow.state != SlotState.DONE))

    def forget_earlier(self) -> None:
        """Delete the slots of earlier claims."""
        self._execute(delete(TrialSlotRow).where(self._earlier()))

    def _execute(self, statement: Any) -> None:
        self._write(lambda session: _count(session, statement))

    def _read(self, work: Callable[[Session], R]) -> R:
        def read() -> R:
            with self._store.read() as session:
                return work(session)

        return self._patience(read)

    def _write(self, work: Callable[[Session], R]) -> R:
        def write() -> R:
            with self._store.begin() as session:
                return work(session)

        return self._patience(write)

    def _mine(self) -> ColumnElement[bool]:
        return (TrialSlotRow.job_id == self._job_id) & (TrialSlotRow.attempt == self._attempt)

    def _earlier(self) -> ColumnElement[bool]:
        return (TrialSlotRow.job_id == self._job_id) & (TrialSlotRow.attempt < self._attempt)
