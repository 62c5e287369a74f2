"""Imports on their way in: nobody sees them before their end, and one that breaks off leaves nothing."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from engine_lab import FakeBench
from fastapi.testclient import TestClient
from large_export import job_line, large_export, trial_lines
from signers import signer
from sqlalchemy import func, select, text, update
from store_samples import ENTERED, HOST, HOST_CLASS, artifact, best, problem, remove_problem, request, trial

from service.engine import device_queue
from service.results import importing, uploads
from service.results.uploads import BadLine
from service.server.app import create_app
from service.settings import Settings
from tilewright.schema.entries import Import, RecordCounts
from tilewright.schema.job import JobStatus
from tilewright.trust import About
from tilewright.wire import Format, ImportAnswer
from tuner.store import best as winners
from tuner.store import entities, exchange, imports, jobs, records, trials
from tuner.store.access import audit, keys
from tuner.store.database import Store, StoreError, WritersBusy
from tuner.store.exchange import ArtifactData, EndedJob, Signed, TrialOfJob, Winner
from tuner.store.models import (
    ArtifactRow,
    BestConfigRow,
    EventRow,
    ImportedBestRow,
    ImportRow,
    JobRow,
    TrialRow,
)
from tuner.store.queue import claims, imported, owners
from tuner.store.records import utc_now
from tuner.store.trials import JobRecorder
from tuner.store.upkeep import check, staging
from tuner.store.upkeep.retention import Kind, prune

JOB, OTHER = "b" * 32, "c" * 32
KERNEL = artifact()
ALL, BATCH = 240, 60  # trials, and lines that enter at once
PARTS = [job_line(JOB), *trial_lines(JOB, ALL)]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_BATCH_LINES", BATCH)


def merged(store: Store, content: bytes, own_key: str | None = None) -> ImportAnswer:
    return importing.merge(store, io.BytesIO(content), Format.NDJSON, own_key, "me")


def merged_as(store: Store, import_id: str) -> ImportAnswer:
    return importing.merge(store, io.BytesIO(b"".join(PARTS)), Format.NDJSON, None, "me", import_id)


def numbers(store: Store, job_id: str) -> list[int]:
    with store.read() as session:
        return [one.number for one in trials.of_job(session, job_id)]


def staged(store: Store) -> list[Any]:
    with store.read() as session:
        return list(session.scalars(select(ImportRow.staged).where(ImportRow.staged.is_not(None))))


def signed_winner(count: int) -> bytes:
    """An export with winners of so many problems, signed by the first test key."""
    data = base64.b64encode(KERNEL.to_bytes()).decode()
    lines: list[Any] = [ArtifactData(KERNEL.digest, data)]
    lines += [
        Winner(dataclasses.replace(best(problem(8 * m)), job_id=""), ENTERED) for m in range(1, count + 1)
    ]
    return signed(b"".join(json.dumps(exchange.to_plain(one)).encode() + b"\n" for one in lines))


def signed(content: bytes) -> bytes:
    """Lines with the signature of the first test key."""
    sign = Signed(signer(1).sign(About.EXPORT, hashlib.sha256(content).hexdigest()))
    return content + json.dumps(exchange.to_plain(sign), separators=(",", ":")).encode() + b"\n"


def test_an_import_that_is_deleted_while_its_winners_come_leaves_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge_winners = staging.merge_winners

    def deleting(store: Store, staged_id: str, entering: Import) -> Any:
        with store.begin() as session:
            assert winners.merge_staged(session, staged_id, entering, 3) == ["in use"] * 3
        with store.begin() as session:
            imports.remove(session, entering.id)
        return merge_winners(store, staged_id, entering)

    monkeypatch.setattr(staging, "merge_winners", deleting)
    assert merged(store, signed_winner(8), signer(1).public_key).trusted
    assert staged(store) == []
    with store.read() as session:
        assert imports.listing(session) == []
        assert session.scalars(select(BestConfigRow)).all() == []
        assert session.scalars(select(ImportedBestRow)).all() == []


def test_a_job_shows_with_all_of_its_trials_or_not_at_all(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[bool, int, int]]()
    go_on = staging.go_on

    def looking(session: Any, *arguments: Any) -> None:
        with store.read() as other:
            shown = jobs.get(other, JOB) is not None
            seen.append((shown, len(jobs.listing(other)), len(exchange.ended_jobs(other, None, None, 10))))
            assert imports.listing(other) == []
        go_on(session, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(staging, "go_on", looking)
        answer = merged(store, b"".join(PARTS))
    assert set(seen) == {(False, 0, 0)}
    assert len(seen) > 3
    assert (answer.added.jobs, answer.added.trials) == (1, ALL)
    assert numbers(store, JOB) == list(range(ALL))
    with store.read() as session:
        assert [one.id for one in imports.listing(session)] == [answer.import_id]
        assert jobs.known(session, JOB).import_id == answer.import_id
    assert merged(store, b"".join(PARTS)).import_id is None
    assert staged(store) == []


def test_what_is_damaged_at_its_end_leaves_nothing_and_joined_jobs_as_they_were(store: Store) -> None:
    merged(store, b"".join(PARTS[:11]))  # trials 0 to 9
    with pytest.raises(BadLine, match="line 242: kind"):
        merged(store, b"".join(PARTS) + b'{"kind":"?"}\n')
    assert numbers(store, JOB) == list(range(10))
    assert staged(store) == []
    assert merged(store, b"".join(PARTS)).added.trials == ALL - 10


def test_what_ended_an_import_is_told_also_where_it_cannot_be_taken_back_now(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsettled(*_: object) -> None:
        raise WritersBusy("too many wait")

    with monkeypatch.context() as patch:
        patch.setattr(staging, "settle", unsettled)
        with pytest.raises(BadLine, match="line 242: kind"):
            merged(store, b"".join(PARTS) + b'{"kind":"?"}\n')
    assert len(staged(store)) == 1
    with store.begin() as session:
        (state,) = session.scalars(select(ImportRow.staged))
        session.execute(update(ImportRow).values(staged=state | {"at": ENTERED.isoformat()}))
    staging.settle_lost(store)
    assert staged(store) == []


def test_an_old_job_of_an_import_that_has_not_ended_is_not_pruned(store: Store) -> None:
    """Its trials follow it, and need it."""
    with store.begin() as session:
        going = staging.begin(session, Import("d" * 32, False, None, None, ENTERED))
        line = exchange.of_plain(json.loads(PARTS[0]))
        assert isinstance(line, exchange.EndedJob)
        assert exchange.merge_job(session, line, going)
        session.execute(update(JobRow).values(created=ENTERED, finished=ENTERED))
    assert prune(store, {Kind.JOBS: 30.0}) == {Kind.JOBS: 0}
    with store.begin() as session:
        session.execute(update(ImportRow).values(staged=None))
    assert prune(store, {Kind.JOBS: 30.0}) == {Kind.JOBS: 1}


def test_the_check_passes_over_jobs_of_an_import_that_has_not_ended(store: Store) -> None:
    with store.begin() as session:
        going = staging.begin(session, Import("d" * 32, False, None, None, ENTERED))
        line = exchange.of_plain(json.loads(PARTS[0]))
        assert isinstance(line, exchange.EndedJob)
        assert exchange.merge_job(session, line, going)
    assert check.unreadable(store) == []


def test_a_job_of_an_import_that_has_not_ended_is_not_joined(store: Store) -> None:
    """That one may yet be taken back, with all that its jobs have."""
    with store.begin() as session:
        going = staging.begin(session, Import("d" * 32, False, None, None, ENTERED))
        line = exchange.of_plain(json.loads(PARTS[0]))
        assert isinstance(line, exchange.EndedJob)
        assert exchange.merge_job(session, line, going)
    for content in (PARTS, [job_line(OTHER), *trial_lines(JOB, 3)]):
        with pytest.raises(BadLine, match=r"job b+ .* on its way in or being deleted; try again"):
            merged(store, b"".join(content))
    staging.settle(store, going.id)
    assert merged(store, b"".join(PARTS)).added.trials == ALL


def test_a_job_of_an_import_that_has_not_ended_cannot_be_cancelled(store: Store, url: str) -> None:
    with store.begin() as session:
        going = staging.begin(session, Import("d" * 32, False, None, None, ENTERED))
        line = exchange.of_plain(json.loads(PARTS[0]))
        assert isinstance(line, exchange.EndedJob)
        assert exchange.merge_job(session, line, going)
    app = create_app(Settings(database_url=url))
    with contextlib.closing(app.state.service.store), contextlib.closing(app.state.service.served):
        answer = TestClient(app, base_url="http://localhost").delete(f"/jobs/{JOB}")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:tilewright:problem:not-found")


@pytest.mark.parametrize(("where", "name"), [(importing._Merging, "end"), (staging, "merge_winners")])
def test_an_import_keeps_kernels_whose_own_import_is_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    own = signer(1).public_key
    first = merged(store, signed_winner(3), own).import_id
    assert first
    step = getattr(where, name)

    def deleting(*arguments: Any) -> Any:
        assert staging.remove(store, first, "me") == RecordCounts(best=3)
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, deleting)
        answer = merged(store, signed_winner(5), own)
    assert (answer.known.artifacts, answer.added.best, answer.waiting) == (1, 5, 0)
    assert answer.import_id
    assert staging.remove(store, answer.import_id, "me") == RecordCounts(artifacts=1, best=5)


def test_an_import_keeps_a_kernel_that_is_deleted_before_the_line_of_its_winner(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was known, and nothing named it yet."""
    own = signer(1).public_key
    first = merged(store, signed_winner(1), own).import_id
    assert first
    go_on, deleted = staging.go_on, list[RecordCounts]()

    def deleting(*arguments: Any) -> None:
        go_on(*arguments)
        if not deleted:
            deleted.append(imports.remove(arguments[0], first))

    monkeypatch.setattr(uploads, "_BATCH_LINES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(staging, "go_on", deleting)
        answer = merged(store, signed_winner(2), own)
    assert deleted == [RecordCounts(artifacts=1, best=1)]
    assert (answer.known.artifacts, answer.added.best, answer.waiting) == (1, 2, 0)


@pytest.mark.parametrize(("where", "name"), [(importing._Merging, "end"), (staging, "merge_winners")])
def test_an_old_kernel_that_a_winner_of_an_import_needs_is_not_pruned(
    store: Store, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    with store.begin() as session:
        entities.put_artifact_bytes(session, KERNEL.to_bytes())
        session.execute(update(ArtifactRow).values(created=utc_now() - timedelta(days=100)))
    step = getattr(where, name)

    def pruning(*arguments: Any) -> Any:
        assert prune(store, {Kind.ARTIFACTS: 30.0}) == {Kind.ARTIFACTS: 0}
        return step(*arguments)

    monkeypatch.setattr(where, name, pruning)
    answer = merged(store, signed_winner(2), signer(1).public_key)
    assert (answer.known.artifacts, answer.added.best, answer.waiting) == (1, 2, 0)


def deleting_problem(monkeypatch: pytest.MonkeyPatch, after: int) -> list[RecordCounts]:
    """Take a problem out after so many lines of the next import."""
    go_on, deleted, lines = staging.go_on, list[RecordCounts](), itertools.count(1)

    def deleting(*arguments: Any) -> None:
        go_on(*arguments)
        if next(lines) == after:
            deleted.append(remove_problem(arguments[0], request().problem))

    monkeypatch.setattr(uploads, "_BATCH_LINES", 1)
    monkeypatch.setattr(staging, "go_on", deleting)
    return deleted


@pytest.mark.parametrize("ladder", [(), (16, request().problem.m)])
def test_an_import_keeps_what_it_brought_of_a_problem_that_is_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch, ladder: tuple[int, ...]
) -> None:
    asked = dataclasses.replace(request(), ladder=ladder)
    job = EndedJob(JOB, asked, HOST, JobStatus.SUCCEEDED, ENTERED, ENTERED)
    lines: list[Any] = [job, Winner(dataclasses.replace(best(asked.problem), job_id=JOB), ENTERED)]
    lines.append(TrialOfJob(JOB, dataclasses.replace(trial(0), m=max(ladder, default=None)), ENTERED))
    deleted = deleting_problem(monkeypatch, after=2)
    answer = merged(store, b"".join(json.dumps(exchange.to_plain(one)).encode() + b"\n" for one in lines))
    assert deleted == [RecordCounts()]
    assert (answer.added.jobs, answer.added.trials, answer.waiting) == (1, 1, 1)
    with store.begin() as session:
        assert remove_problem(session, asked.problem).trials == 1
        assert session.scalars(select(ImportedBestRow)).all() == []


def test_an_import_says_when_a_job_that_it_joined_was_deleted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(store, b"".join(PARTS[:3]))
    deleted = deleting_problem(monkeypatch, after=1)
    with pytest.raises(BadLine, match=r"line 2: there is no job .* again if the job was deleted meanwhile"):
        merged(store, b"".join(PARTS[:5]))
    assert deleted == [RecordCounts(jobs=1, trials=2)]
    assert merged(store, b"".join(PARTS[:5])).added.trials == 4


class Killed(BaseException):
    """The process ends here."""


@contextlib.contextmanager
def broken_off(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> Iterator[None]:
    """This process ends in a step of the block's import, so that nothing is taken back either."""
    step, calls = getattr(staging, name), iter(range(after + 1))

    def breaking(*arguments: Any) -> Any:
        if next(calls) == after:
            raise Killed
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(staging, name, breaking)
        patch.setattr(staging, "settle", lambda *_: None)
        with pytest.raises(Killed):
            yield


def die(store: Store) -> None:
    """Let the imports that are on their way be those of a process that ended."""
    with store.begin() as session:
        for row in session.scalars(select(ImportRow).where(ImportRow.staged.is_not(None))):
            owner = owners.new_owner().split("/")
            row.staged = {**(row.staged or {}), "owner": "/".join([*owner[:-2], "0", owner[-1]])}


def test_what_is_deleted_shows_no_more_and_goes_in_small_steps(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    step, shown = staging._step, list[int]()

    def watched(*arguments: Any) -> Any:
        with store.read() as session:
            shown.append(len(imports.listing(session)) + len(jobs.listing(session)))
            assert imports.get(session, import_id) is None
        return step(*arguments)

    monkeypatch.setattr(staging, "_step", watched)
    monkeypatch.setattr(staging, "_ROWS", 24)
    assert staging.remove(store, import_id, "me") == RecordCounts(jobs=1, trials=ALL)
    assert len(shown) > ALL / 24
    assert set(shown) == {0}
    with store.read() as session:
        entry = audit.listing(session)[0]
    assert (entry.who, entry.action, entry.target) == ("me", "delete import", import_id)
    assert entry.data == {"jobs": 1, "trials": ALL, "artifacts": 0, "best": 0}
    with pytest.raises(StoreError, match="'tilewright imports' lists"):
        staging.remove(store, import_id, "me")


@pytest.mark.long
def test_a_delete_whose_process_died_comes_to_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own = signer(1).public_key
    import_id = merged(store, signed_winner(60), own).import_id
    assert import_id
    with broken_off(monkeypatch, "_step", 1):
        staging.remove(store, import_id, "me")
    with store.read() as session:
        assert winners.for_arch(session, HOST_CLASS) == []
    with pytest.raises(BadLine, match="is being deleted"):
        importing.merge(store, io.BytesIO(signed_winner(60)), Format.NDJSON, own, "me", import_id)
    die(store)
    staging.settle_lost(store)
    with store.read() as session:
        assert session.scalars(select(ImportRow)).all() == []
        assert not entities.has_artifact(session, KERNEL.digest)
    assert importing.merge(
        store, io.BytesIO(signed_winner(60)), Format.NDJSON, own, "me", import_id
    ).added.best


def test_a_delete_that_broke_off_goes_on_when_it_is_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    with broken_off(monkeypatch, "_step", 1):
        staging.remove(store, import_id, "me")
    assert staging.remove(store, import_id, "me").jobs == 1
    with store.begin() as session:
        assert session.scalars(select(ImportRow)).all() == []
        entering = staging.begin(session, Import("d" * 32, False, None, None, ENTERED))
    with pytest.raises(StoreError, match="there is no import"):
        staging.remove(store, entering.id, "me")


def test_two_deletes_at_once_each_say_what_they_took(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    delete_trials, others = staging._delete_trials, list[RecordCounts]()

    def faster(*arguments: Any) -> None:
        delete_trials(*arguments)
        if not others:
            others.append(RecordCounts())
            others[:] = [staging.remove(store, import_id, "other")]
            assert merged_as(store, import_id).added.jobs == 1

    monkeypatch.setattr(staging, "_delete_trials", faster)
    assert staging.remove(store, import_id, "me") == RecordCounts(trials=ALL)
    assert others == [RecordCounts(jobs=1)]
    assert len(numbers(store, JOB)) == ALL, "what was brought again stays"
    with store.read() as session:
        told = {entry.who: entry.data for entry in audit.listing(session) if entry.action == "delete import"}
    assert (told["me"]["trials"], told["other"]["jobs"]) == (ALL, 1)


@pytest.mark.parametrize(("before", "after"), [(False, True), (False, False), (True, True)])
def test_what_is_taken_back_is_nothing_of_an_import_that_came_since(
    store: Store, monkeypatch: pytest.MonkeyPatch, before: bool, after: bool
) -> None:
    def given(parts: Sequence[bytes], trusted: bool) -> tuple[bytes, str | None]:
        content = b"".join(parts)
        return (signed(content), signer(1).public_key) if trusted else (content, None)

    first = merged(store, *given(PARTS[:11], before)).import_id
    assert first
    with broken_off(monkeypatch, "go_on", 3):
        merged(store, *given(PARTS, before))
    staging.remove(store, first, "me")
    assert merged(store, *given(PARTS, after)).added.trials == ALL
    die(store)
    staging.settle_lost(store)
    assert (staged(store), numbers(store, JOB)) == ([], list(range(ALL)))


def test_a_trusted_import_that_breaks_off_takes_no_other_import_with_it(store: Store) -> None:
    merged(store, b"".join(PARTS[:11]))
    damaged = signed(b"".join([job_line(OTHER), *PARTS, b'{"kind":"?"}\n']))
    with pytest.raises(BadLine, match=r"line 2: job b+ is here from import .* no trusted key signed"):
        merged(store, damaged, signer(1).public_key)
    assert (staged(store), numbers(store, JOB)) == ([], list(range(10)))
    with store.read() as session:
        assert jobs.get(session, OTHER) is None


def test_what_another_service_settles_first_is_left_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken_off(monkeypatch, "go_on", 2):
        merged(store, b"".join(PARTS))
    die(store)
    settle = staging.settle

    def slower(*arguments: Any) -> None:
        settle(*arguments)
        settle(*arguments)

    monkeypatch.setattr(staging, "settle", slower)
    staging.settle_lost(store)
    assert (staged(store), numbers(store, JOB)) == ([], [])


def test_a_delete_at_work_is_no_lost_one(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    with broken_off(monkeypatch, "_step", 1):
        staging.remove(store, import_id, "me")
    with store.begin() as session:
        [state] = session.scalars(select(ImportRow.staged))
        session.execute(update(ImportRow).values(staged=state | {"at": ENTERED.isoformat()}))
    with staging._step(store, import_id, None):
        pass
    staging.settle_lost(store)
    assert len(staged(store)) == 1


def test_a_delete_ends_with_its_service_and_goes_on_after_the_next_start(store: Store) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(staging.BrokeOff, match="what is left of import"):
        staging.remove(store, import_id, "me", stopping)
    die(store)
    staging.settle_lost(store, leaving=False)
    assert len(staged(store)) == 1, "a start does not wait for it"
    with pytest.raises(staging.BrokeOff):
        staging.settle_lost(store, stopping=stopping)
    die(store)
    staging.settle_lost(store)
    assert (staged(store), numbers(store, JOB)) == ([], [])


def test_neither_the_stop_nor_the_start_of_a_service_waits_for_a_delete(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_queue, "Bench", FakeBench)
    import_id = merged(store, b"".join(PARTS)).import_id
    with store.begin() as session:
        _, key = keys.create(session, "me", frozenset({"admin"}))
    settings = Settings(database_url=url, devices=("host",), compile_processes=1)
    with TestClient(create_app(settings), base_url="http://localhost") as visitor:
        visitor.app.state.service.engine.begin_stop()  # type: ignore[attr-defined]
        answer = visitor.delete(f"/imports/{import_id}", headers={"Authorization": f"Bearer {key}"})
        assert answer.status_code == 503
        assert "what is left of import" in answer.json()["detail"]
    die(store)
    with TestClient(create_app(settings), base_url="http://localhost") as visitor:
        assert len(staged(store)) == 1
        visitor.app.state.service.upkeep.prune()  # type: ignore[attr-defined]
        assert (staged(store), numbers(store, JOB)) == ([], [])


def test_one_whose_process_died_is_taken_back_at_the_next_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged(store, b"".join(PARTS[:11]))
    with broken_off(monkeypatch, "go_on", 3):
        merged(store, large_export(OTHER, 50_000) + b"".join(PARTS[11:]))
    assert numbers(store, OTHER) != []
    staging.settle_lost(store)
    assert len(staged(store)) == 1, "its process lives"
    die(store)
    staging.settle_lost(store)
    assert (staged(store), numbers(store, OTHER), numbers(store, JOB)) == ([], [], list(range(10)))
    assert merged(store, large_export(OTHER, 50_000)).added.jobs == 1


def test_one_that_was_not_heard_of_for_an_hour_is_taken_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broken_off(monkeypatch, "go_on", 2):
        merged(store, b"".join(PARTS))
    monkeypatch.setattr(staging, "_GIVEN_UP", timedelta(0))
    staging.settle_lost(store)
    assert (staged(store), numbers(store, JOB)) == ([], [])


@pytest.mark.long
def test_one_that_shows_already_is_brought_to_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    content, own = signed_winner(60), signer(1).public_key
    with broken_off(monkeypatch, "merge_winners", 0):
        merged(store, content, own)
    with store.read() as session:
        assert winners.for_arch(session, HOST_CLASS) == []
        assert imported.waiting_problem(session, HOST_CLASS) is None
    die(store)
    staging.settle_lost(store)
    assert staged(store) == []
    with store.read() as session:
        assert len(winners.for_arch(session, HOST_CLASS)) == 60
        (entered,) = imports.listing(session)
        assert imports.counts(session, entered.id).best == 60
    again = merged(store, content, own)
    assert (again.import_id, again.known.best) == (None, 60)


def test_a_trusted_import_brings_its_winners_at_its_end(store: Store) -> None:
    answer = merged(store, signed_winner(3), signer(1).public_key)
    assert (answer.trusted, answer.added.best, answer.added.artifacts) == (True, 3, 1)
    untrusted = merged(store, signed_winner(5))
    assert (untrusted.trusted, untrusted.waiting, untrusted.known.best) == (False, 2, 3)


def test_a_damaged_one_is_named_and_set_aside_and_all_others_are_settled(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with broken_off(monkeypatch, "go_on", 2):
        merged(store, b"".join(PARTS))
    die(store)
    with store.begin() as session:
        session.add(ImportRow(id="0" * 32, trusted=False, created=ENTERED, staged="{"))
        session.flush()
        if session.connection().dialect.name == "sqlite":  # PostgreSQL keeps no such text
            session.execute(text("UPDATE import SET staged = '{' WHERE id = :id"), {"id": "0" * 32})
    records.log_unreadable.cache_clear()
    staging.settle_lost(store)
    assert f"set aside: this release cannot read import {'0' * 32}: column 'staged' must" in caplog.text
    assert (staged(store), numbers(store, JOB)) == (["{"], [])
    assert [line.split(":")[0] for line in check.unreadable(store)] == [
        f"this release cannot read import {'0' * 32}"
    ]
    merged(store, b"".join(PARTS))
    with store.begin() as session:
        assert remove_problem(session, request().problem).jobs == 1
    staging.remove(store, "0" * 32, "me")
    assert staged(store) == []


def tuned_here(store: Store, ladder: tuple[int, ...] = (), seed: int = 0) -> str:
    """A job that ended, with as many trials as :data:`ALL`, and a winner."""
    with store.begin() as session:
        job, _ = jobs.submit(session, dataclasses.replace(request(seed=seed), ladder=ladder), HOST)
        claims.claim(session, HOST_CLASS, "me")
    recorder, rows = JobRecorder(store, job.id), ladder or (None,)
    for number in range(ALL):
        recorder.add_trial(dataclasses.replace(trial(number), m=rows[number % len(rows)]), artifact())
    recorder.set_best(best(request().problem), artifact())
    with store.begin() as session:
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
    return job.id


def left(store: Store) -> tuple[int, int, int]:
    """How many winners, trials and events there are."""
    with store.read() as session:
        of = (BestConfigRow, TrialRow, EventRow)
        return tuple(session.scalars(select(func.count()).select_from(one)).one() for one in of)


def test_a_problem_goes_in_small_steps_and_what_is_served_of_it_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_here(store)
    short, seen = staging._short, [left(store)]

    def watched(*arguments: Any) -> Any:
        seen.append(left(store))
        return short(*arguments)

    monkeypatch.setattr(staging, "_short", watched)
    monkeypatch.setattr(staging, "_ROWS", 24)
    assert staging.remove_problem(store, request().problem, "me") == RecordCounts(1, ALL, 0, 1)
    winners_left, trials_left, events_left = zip(*seen, strict=True)
    assert [*winners_left[:2], *trials_left[:2]] == [1, 0, ALL, ALL]
    assert max(before - after for before, after in itertools.pairwise(trials_left)) == 24
    assert max(before - after for before, after in itertools.pairwise(events_left)) == 24
    assert seen[-1] == left(store) == (0, 0, 0)
    with store.read() as session:
        [told] = [entry for entry in audit.listing(session) if entry.action == "delete problem"]
    assert (told.who, told.target, told.data["trials"]) == ("me", str(request().problem), ALL)
    with pytest.raises(StoreError, match="has no results here"):
        staging.remove_problem(store, request().problem, "me")


def after_a_step(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen once, after the first small step of a deletion."""
    deleted, acts = staging._deleted, [act]

    def acting(*arguments: Any) -> Iterator[int]:
        for count in deleted(*arguments):
            if acts:
                acts.pop()()
            yield count

    monkeypatch.setattr(staging, "_deleted", acting)
    monkeypatch.setattr(staging, "_ROWS", 24)


def last_told(store: Store) -> dict[str, Any]:
    """What the newest entry of the audit log says."""
    with store.read() as session:
        return audit.listing(session, 1)[0].data


def test_a_deletion_of_a_problem_that_broke_off_goes_on_when_it_is_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_here(store)
    stopping = threading.Event()
    with monkeypatch.context() as patch:
        after_a_step(patch, stopping.set)
        with pytest.raises(staging.BrokeOff, match="what is left of"):
            staging.remove_problem(store, request().problem, "me", stopping)
    assert left(store)[:2] == (0, ALL - 24)
    assert last_told(store) == {"jobs": 0, "trials": 24, "artifacts": 0, "best": 1}
    again = staging.remove_problem(store, request().problem, "me")
    assert again == RecordCounts(jobs=1, trials=ALL - 24)
    assert last_told(store) == {"jobs": 1, "trials": ALL - 24, "artifacts": 0, "best": 0}
    assert left(store) == (0, 0, 0)


def test_what_a_delete_could_not_tell_is_not_deleted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = tuned_here(store)
    with monkeypatch.context() as patch:

        def busy(*_: object, **__: object) -> NoReturn:
            raise WritersBusy("too many wait")

        patch.setattr(staging.audit, "amend", busy)
        with pytest.raises(WritersBusy):
            staging.remove_problem(store, request().problem, "me")
    with store.read() as session:
        assert list(session.scalars(select(JobRow.id))) == [job_id]
    assert staging.remove_problem(store, request().problem, "me").jobs == 1
    assert last_told(store)["jobs"] == 1


def test_a_delete_of_an_import_that_broke_off_is_told_with_what_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_id = merged(store, b"".join(PARTS)).import_id
    assert import_id
    stopping = threading.Event()
    after_a_step(monkeypatch, stopping.set)
    with pytest.raises(staging.BrokeOff):
        staging.remove(store, import_id, "me", stopping)
    assert last_told(store) == {"jobs": 0, "trials": 24, "artifacts": 0, "best": 0}


@pytest.mark.parametrize("ladder", [(), (16, request().problem.m)])
def test_a_job_that_ends_while_its_problem_is_deleted_stays_with_its_winner(
    store: Store, monkeypatch: pytest.MonkeyPatch, ladder: tuple[int, ...]
) -> None:
    tuned_here(store)
    new = list[str]()
    with monkeypatch.context() as patch:
        after_a_step(patch, lambda: new.append(tuned_here(store, ladder, seed=1)))
        assert staging.remove_problem(store, request().problem, "me") == RecordCounts(1, ALL, 0, 1)
    assert last_told(store) == {"jobs": 1, "trials": ALL, "artifacts": 0, "best": 1}
    with store.read() as session:
        assert list(session.scalars(select(JobRow.id))) == new
        assert [one.best.job_id for one in winners.exact(session, HOST_CLASS, request().problem)] == new
    assert numbers(store, new[0]) == list(range(ALL))
    again = staging.remove_problem(store, request().problem, "me")
    assert again == (RecordCounts(0, ALL // 2, 0, 1) if ladder else RecordCounts(1, ALL, 0, 1))


def test_a_job_that_is_queued_while_its_problem_is_deleted_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned_here(store)
    new = list[str]()

    def submit() -> None:
        with store.begin() as session:
            new.append(jobs.submit(session, request(seed=1), HOST)[0].id)

    with monkeypatch.context() as patch:
        after_a_step(patch, submit)
        assert staging.remove_problem(store, request().problem, "me") == RecordCounts(1, ALL, 0, 1)
    with store.read() as session:
        assert list(session.scalars(select(JobRow.id))) == new
    with pytest.raises(imports.InUse, match=f"job {new[0]} .* is queued; cancel it"):
        staging.remove_problem(store, request().problem, "me")
    with store.begin() as session:
        jobs.finish(session, new[0], JobStatus.CANCELLED)
    assert staging.remove_problem(store, request().problem, "me") == RecordCounts(jobs=1)
    assert left(store) == (0, 0, 0)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_winner_that_is_imported_while_its_problem_is_deleted_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    tuned_here(store)
    own = signer(1).public_key if trusted else None
    with monkeypatch.context() as patch:
        after_a_step(patch, lambda: merged(store, signed_winner(request().problem.m // 8), own))
        assert staging.remove_problem(store, request().problem, "me") == RecordCounts(1, ALL, 0, 1)
    with store.read() as session:
        assert len(winners.exact(session, HOST_CLASS, request().problem)) == trusted
        assert len(imported.waiting(session, HOST_CLASS, request().problem, 10)) == (not trusted)


def test_a_row_of_a_ladder_goes_with_its_trials_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = tuned_here(store, ladder=(16, request().problem.m))
    monkeypatch.setattr(staging, "_ROWS", 24)
    events = left(store)[2]
    gone = staging.remove_problem(store, request().problem, "me")
    assert gone == RecordCounts(trials=ALL // 2, best=1)
    assert numbers(store, job_id) == list(range(0, ALL, 2))
    assert left(store) == (0, ALL // 2, events)
    with pytest.raises(StoreError):
        staging.remove_problem(store, problem(9999), "me")
    assert staging.remove_problem(store, problem(16), "me") == RecordCounts(jobs=1, trials=ALL // 2)
    assert left(store) == (0, 0, 0)
