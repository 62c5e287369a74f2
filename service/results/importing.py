"""Imports results into the store: the union of stored and imported results, as far as the signer is
trusted."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from typing import IO

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.results import uploads
from service.results.uploads import BadLine, Named
from tilewright.artifact import Artifact
from tilewright.errors import ArtifactError, InvalidProblem, TilewrightError
from tilewright.schema.entries import Import
from tilewright.schema.problem import GemmProblem
from tilewright.wire import Counts, Format, ImportAnswer
from tuner.store import best, entities, exchange, imports, trials
from tuner.store.access import audit, keys
from tuner.store.access.audit import Action
from tuner.store.database import Store, StoreError, Values, lock_results
from tuner.store.exchange import ArtifactData, EndedJob, Line, TrialOfJob, Winner
from tuner.store.records import utc_now
from tuner.store.upkeep import staging

log = logging.getLogger("tilewright.imports")
_UNTRUSTED = (
    "is signed by {}, which is not trusted here; if you trust it, 'tilewright trust add' it and import again"
)


def merge(
    store: Store,
    source: IO[bytes],
    kind: Format,
    own_key: str | None,
    who: str,
    import_id: str | None = None,
    key_id: str | None = None,
) -> ImportAnswer:
    """Keep what is new in a file, all of it or nothing.

    It is read twice, bit by bit: for its signatures, and for its records, which enter in short transactions
    and show at the end (:mod:`tuner.store.upkeep.staging`). Kernels and winners are taken where this service
    itself or a trusted key signed all lines. Otherwise jobs and trials are kept apart from others, kernels
    are dropped, and winners wait to be built and raced here.

    Args:
        own_key: that this service signs with.
        who: imports it, as the audit log has it.
        import_id: of an import that goes on; a new one unless given.
        key_id: the API key that sent it.

    Raises:
        BadLine: a record is damaged or comes before what it needs, or the import began with other signatures.
    """
    signer, flaw = uploads.signer(source, kind)
    source.seek(0)
    try:
        with store.begin() as session:
            trusted = signer in {own_key, *(key.key for key in keys.trusted(session))} - {None}
            entering = Import(import_id or secrets.token_hex(16), trusted, signer, key_id, utc_now())
            staged = staging.begin(session, entering)
    except StoreError as error:
        raise BadLine(str(error)) from error
    merging = _Merging(staged)
    try:
        _take_all(store, merging, uploads.records(source, kind))
        merging.end(store, entering, who)
    except BaseException:
        _settle(store, staged)
        raise
    return merging.answer(entering, "" if trusted else flaw or f"it {_UNTRUSTED.format(signer)}")


def _settle(store: Store, staged: Import) -> None:
    """Settle an import that broke off. Its sender is told the error that ended it, even if settling fails."""
    try:
        staging.settle(store, staged.id)
    except (SQLAlchemyError, TilewrightError) as error:
        log.warning("what import %s brought is taken back within an hour: %s", staged.id, error)


def _take_all(store: Store, merging: _Merging, batches: Iterator[list[Named]]) -> None:
    for batch in batches:
        runs = [_Run.of(list(named)) for _, named in itertools.groupby(batch, _run)]
        started = time.monotonic()
        with store.begin() as session:
            merging.take(session, runs)
        time.sleep(time.monotonic() - started)  # NOTE: SQLite lets a writer in only if it looks just then


@dataclasses.dataclass(frozen=True, slots=True)
class _Run:
    """Trials of one job that follow each other and enter together, or another record.

    Attributes:
        name, first: the first record with its name.
        trials: all of them, prepared; empty for another record.
    """

    name: str
    first: Line
    trials: list[Values]

    @classmethod
    def of(cls, run: list[Named]) -> _Run:
        """From records that :func:`_run` names alike."""
        found = [trials.prepared(one.trial, one.created) for _, one in run if isinstance(one, TrialOfJob)]
        return cls(*run[0], found)


class _Merging:
    """Takes the records of an import in progress, and counts what became of each."""

    def __init__(self, staged: Import) -> None:
        self._staged = staged
        self._added, self._known = Counter[str](), Counter[str]()
        self._waiting = self._dropped = 0
        self._joined = list[tuple[str, int]]()
        self._kernel: ArtifactData | None = None  # of the last line with one: that of a winner is before it

    def answer(self, entering: Import, reason: str) -> ImportAnswer:
        """The answer to the sender, with the reason why kernels were dropped."""
        changed = self._added.total() or self._waiting
        anything = changed or self._known.total() or self._dropped
        return ImportAnswer(
            import_id=entering.id if changed else None,
            trusted=entering.trusted,
            signer=entering.signer,
            added=Counts(**self._added),
            known=Counts(**self._known),
            waiting=self._waiting,
            dropped=self._dropped,
            reason=reason if anything else "",
        )

    def take(self, session: Session, runs: list[_Run]) -> None:
        """Keep records, in one transaction.

        Raises:
            BadLine: one is damaged, or comes before what it needs.
        """
        self._joined.clear()
        lock_results(session)
        entities.ensure_problems(session, (problem for run in runs for problem in _problems(run.first)))
        for run in runs:
            self._take(session, run)
        staging.go_on(session, self._staged, self._joined)

    def end(self, store: Store, entering: Import, who: str) -> None:
        """Make all results of the import visible.

        Raises:
            BadLine: the import was begun meanwhile, with other signatures.
        """
        try:
            with store.begin() as session:
                is_new = staging.end(session, self._staged, entering)
                fields = {"signer": entering.signer, "trusted": entering.trusted, **self._added}
                audit.note(session, who, Action.IMPORT, entering.id, **fields)
        except StoreError as error:
            raise BadLine(str(error)) from error
        for merged in staging.merge_winners(store, self._staged.id, entering):
            if merged == "waiting":
                self._waiting += 1
            else:
                self._count("best", merged == "in use")
        if is_new and not self._added.total() and not self._waiting:
            with store.begin() as session, contextlib.suppress(StoreError):  # deleted meanwhile
                imports.remove(session, entering.id)

    def _take(self, session: Session, run: _Run) -> None:
        line = run.first
        try:
            match line:
                case EndedJob():
                    self._count("jobs", exchange.merge_job(session, line, self._staged))
                case TrialOfJob():
                    self._trials(session, line.job, run.trials)
                case ArtifactData():
                    self._artifact(session, line)
                case Winner():
                    self._winner(session, line)
        except (StoreError, InvalidProblem, ArtifactError) as error:
            raise BadLine(f"{run.name}: {error}") from error

    def _count(self, kind: str, new: int, of: int = 1) -> None:
        self._added[kind] += new
        self._known[kind] += of - new

    def _trials(self, session: Session, job_id: str, found: list[Values]) -> None:
        _need_job(session, job_id)
        exchange.need_ended(session, job_id, self._staged)
        numbers = trials.merge(session, job_id, found, self._staged)
        if not exchange.is_of(session, job_id, self._staged.id):
            self._joined += [(job_id, number) for number in numbers]
        self._count("trials", len(numbers), len(found))

    def _artifact(self, session: Session, line: ArtifactData) -> None:
        self._kernel = line
        if entities.has_artifact(session, line.digest):
            self._count("artifacts", 0)
        elif self._staged.trusted:
            self._keep(session, line)
            self._count("artifacts", 1)
        else:
            self._dropped += 1

    def _keep(self, session: Session, line: ArtifactData) -> None:
        data = _decoded(line)
        Artifact.from_bytes(data, line.digest)  # raises if they are damaged
        entities.put_artifact_bytes(session, data, self._staged.id)

    def _winner(self, session: Session, line: Winner) -> None:
        if line.best.job_id:
            _need_job(session, line.best.job_id)
        kernel, digest = self._kernel, line.best.artifact
        is_kept = not self._staged.trusted or entities.need_artifact(session, digest)
        if kernel and kernel.digest == digest and not is_kept:
            self._keep(session, kernel)  # it was known, and deleted since with the import that brought it
        best.stage(session, line.best, line.created, self._staged.id)


def _problems(line: Line) -> tuple[GemmProblem, ...]:
    """The problems that a record names."""
    match line:
        case EndedJob():
            return tuple(line.request.problems)
        case Winner():
            return (line.best.problem,)
    return ()


def _need_job(session: Session, job_id: str) -> None:
    if not exchange.has_job(session, job_id):
        raise StoreError(
            f"there is no job {job_id}; put the line of a job before what belongs to it, or import the file"
            " again if the job was deleted meanwhile"
        )


def _run(named: Named) -> str:
    """The key that groups consecutive trials of one job, which enter together; every other record is
    alone."""
    name, line = named
    return f"trials of {line.job}" if isinstance(line, TrialOfJob) else name


def _decoded(line: ArtifactData) -> bytes:
    try:
        return base64.b64decode(line.data, validate=True)
    except ValueError as error:
        raise ArtifactError(f"artifact {line.digest} is not base64; export it again") from error
