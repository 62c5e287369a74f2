"""Trials, artifacts, winners and events, and the recorder that writes them together."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from store_samples import (
    HOST,
    HOST_CLASS,
    OTHER_CLASS,
    OTHER_HOST,
    PROVENANCE,
    TIMING,
    artifact,
    best,
    failed_trial,
    problem,
    request,
    trial,
)

from tilewright.artifact import Artifact, CtaOrder
from tilewright.schema.job import JobProgress, JobStatus
from tilewright.schema.problem import GemmProblem, Layout
from tilewright.schema.trial import QUICK_METHOD, Outcome
from tuner.store import best as winners
from tuner.store import entities, jobs, trials
from tuner.store.database import JobTaken, Store, StoreError
from tuner.store.models import FamilySourceRow
from tuner.store.queue import claims
from tuner.store.records import JobRecord, StoredBest
from tuner.store.reports import winners as reports
from tuner.store.trials import JobRecorder


@pytest.fixture
def job(store: Store) -> JobRecord:
    with store.begin() as session:
        jobs.submit(session, request(), HOST)
        claimed = claims.claim(session, HOST_CLASS, "me")
    assert claimed is not None
    return claimed


@pytest.fixture
def recorder(store: Store, job: JobRecord) -> JobRecorder:
    return JobRecorder(store, job.id)


def progress_of(store: Store, job: JobRecord) -> JobProgress | None:
    with store.read() as session:
        return jobs.get(session, job.id).progress


def log_of(store: Store, job: JobRecord, last_id: int = 0, limit: int = 500) -> list:
    with store.read() as session:
        return jobs.events_after(session, job.id, last_id, limit)


def test_trials_come_back_as_given(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    repeats = [dataclasses.replace(trial(number), repeatable=number == 3) for number in (3, 4)]
    given = [trial(0), failed_trial(1), trial(2, outcome=Outcome.PRUNED), *repeats]
    for item in given:
        recorder.add_trial(item, artifact() if item.artifact else None)
    assert recorder.trials() == given
    with store.read() as session:
        assert trials.count(session, job.id) == 5
        assert trials.of_job(session, job.id, first=1, limit=1) == given[1:2]
        assert trials.of_job(session, "none") == []
        assert Artifact.from_bytes(entities.get_artifact(session, given[0].artifact)) == artifact()


def test_what_a_compiler_prints_is_kept_readable(recorder: JobRecorder) -> None:
    recorder.add_trial(failed_trial(0, "a\0b \udcff"), None)
    assert recorder.trials()[0].message == "a\\x00b \\udcff"


def test_a_trial_and_what_it_changes_commit_together(
    store: Store, job: JobRecord, recorder: JobRecorder
) -> None:
    recorder.add_trial(trial(0, median=5.0), None)
    before = progress_of(store, job), log_of(store, job)
    with pytest.raises(IntegrityError):
        recorder.add_trial(trial(0, median=1.0), artifact(b"other"))
    assert (progress_of(store, job), log_of(store, job)) == before
    with store.read() as session:
        assert entities.get_artifact(session, artifact(b"other").digest) is None


def test_trials_move_the_progress(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    recorder.add_trial(trial(0, median=5.0), None)
    recorder.add_trial(trial(1, median=4.0), None)
    recorder.add_trial(trial(2, median=3.0, outcome=Outcome.PRUNED), None)
    recorder.add_trial(failed_trial(3), None)
    best_config = str(trial(1).config)
    expected = JobProgress("search", 3, request().max_trials, failed=1, best_us=4.0, best_config=best_config)
    assert progress_of(store, job) == expected
    published = dataclasses.replace(expected, phase="race", eta_s=1.5)
    recorder.set_progress(published)
    assert progress_of(store, job) == published
    recorder.add_trial(failed_trial(4), None)
    assert progress_of(store, job) == dataclasses.replace(published, failed=2)


def test_events_follow_one_another(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    recorder.add_trial(trial(0), artifact())
    recorder.set_progress(JobProgress("race", 1, 7))
    recorder.set_best(best(problem()), artifact())
    log = log_of(store, job)
    assert [event.kind for event in log] == ["status", "status", "trial", "progress", "best"]
    assert all(earlier.id < later.id for earlier, later in itertools.pairwise(log))
    assert log[2].data["median_us"] == 2.0
    assert log[4].data["verdict"] == "kernel"
    assert log_of(store, job, last_id=log[1].id, limit=2) == log[2:4]
    assert log_of(store, job, last_id=log[4].id) == []


def test_a_recorder_ends_with_its_claim(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    with store.begin() as session:
        claims.requeue_interrupted(session, HOST_CLASS, "me")
        claims.claim(session, HOST_CLASS, "another")
    with pytest.raises(JobTaken):
        recorder.add_trial(trial(0), None)
    JobRecorder(store, job.id).add_trial(trial(0), None)
    with store.begin() as session:
        jobs.finish(session, job.id, JobStatus.SUCCEEDED)
    with pytest.raises(JobTaken):
        JobRecorder(store, job.id).set_progress(JobProgress("done", 1, 1))
    with pytest.raises(JobTaken, match="there is no job"):
        JobRecorder(store, "none")


def test_sources_are_kept_once(store: Store, recorder: JobRecorder) -> None:
    for number in range(3):
        recorder.add_trial(trial(number), None)
    with store.read() as session:
        rows = session.execute(select(FamilySourceRow.family, FamilySourceRow.source_digest)).all()
    assert [tuple(row) for row in rows] == [("host", "a" * 64)]


def test_artifacts_are_kept_once(store: Store) -> None:
    with store.begin() as session:
        digests = {entities.put_artifact(session, artifact()) for _ in range(2)}
        assert digests == {artifact().digest}
        assert entities.get_artifact(session, artifact().digest) == artifact().to_bytes()
        assert entities.get_artifact(session, "0" * 64) is None


def test_an_artifact_of_an_earlier_version_keeps_its_digest(store: Store) -> None:
    now = artifact()
    ordered = dataclasses.replace(now.plan, args=(*now.plan.args, CtaOrder("where")))
    data = dataclasses.replace(now, plan=ordered).to_bytes()
    text = data[12 : -len(now.binary)].replace(b'"cta_order"', b'"block_order"')
    before = data[:8] + len(text).to_bytes(4, "little") + text + now.binary
    with store.begin() as session:
        digest = entities.put_artifact_bytes(session, before)
        kept = entities.get_artifact(session, digest)
    assert kept == before
    plan = Artifact.from_bytes(kept, digest).plan
    assert plan == dataclasses.replace(ordered, args=(*now.plan.args, CtaOrder("where", "block_order")))


def put(store: Store, *found) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for item in found:
            winners.put(session, item)


def test_a_winner_comes_back_as_found(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    recorder.add_trial(trial(0), artifact())
    recorder.set_best(best(problem()), artifact())
    expected = dataclasses.replace(best(problem()), job_id=job.id)
    with store.read() as session:
        for target in (HOST_CLASS, HOST.arch):
            assert [found.best for found in winners.exact(session, target, problem())] == [expected]
        assert winners.exact(session, "sm_90", problem()) == []
        assert winners.exact(session, HOST_CLASS, problem(65)) == []


def winner(store: Store) -> StoredBest:
    with store.read() as session:
        (found,) = winners.exact(session, HOST_CLASS, problem())
    return found


@pytest.mark.parametrize("speedup", [1.6, 1.5, 1.0])
def test_the_latest_race_replaces_a_winner_whatever_its_figures(store: Store, speedup: float) -> None:
    """The earlier winner took part in it: what it once led by says nothing."""
    put(store, best(problem(), speedup=3.4))
    first = winner(store)
    put(store, best(problem(), speedup=speedup))
    second = winner(store)
    assert second.best.speedup == speedup
    assert second.id == first.id
    assert second.created > first.created


def test_a_disturbed_race_replaces_disturbed_ones_alone(store: Store) -> None:
    loud = best(problem(), speedup=3.4, disturbed="others kept 0.90 cores busy")
    assert (loud.verdict, loud.use_vendor) == ("disturbed", True)
    put(store, loud)
    put(store, dataclasses.replace(loud, speedup=3.0))
    assert winner(store).best.speedup == 3.0
    put(store, best(problem(), speedup=1.0))
    put(store, loud)
    assert winner(store).best == best(problem(), speedup=1.0)


def test_a_quick_result_replaces_quick_ones_alone(store: Store) -> None:
    full = best(problem(), speedup=1.0)
    method = full.provenance.method + QUICK_METHOD
    quick = dataclasses.replace(
        full, speedup=1.1, provenance=dataclasses.replace(full.provenance, method=method)
    )
    put(store, quick)
    put(store, dataclasses.replace(quick, speedup=1.2))
    assert winner(store).best.speedup == 1.2
    put(store, full)
    put(store, quick)
    assert winner(store).best == full


def test_a_job_keeps_its_own_result(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    before = best(problem(), speedup=1.5)
    put(store, before)
    assert recorder.stored_best(problem()) == before
    loud = best(problem(), speedup=3.4, disturbed="others kept 0.90 cores busy")
    recorder.set_best(loud, artifact())
    with store.read() as session:
        assert jobs.known(session, job.id).result == dataclasses.replace(loud, job_id=job.id)
    assert winner(store).best == before


def test_a_winner_that_was_not_raced_stays(store: Store, job: JobRecord, recorder: JobRecorder) -> None:
    """Another job stored it while the races of this job ran."""
    put(store, best(problem(), speedup=1.5))
    raced = recorder.stored_best(problem())
    newer = best(problem(), speedup=1.6)
    put(store, newer)
    assert not recorder.set_best(best(problem(), speedup=1.4), artifact(), raced)
    assert winner(store).best == newer
    won = best(problem(), speedup=1.7)
    assert recorder.set_best(won, artifact(), newer)
    assert recorder.set_best(won, artifact(), newer), "the answer to its commit was lost"
    with store.read() as session:
        assert winner(store).best == jobs.known(session, job.id).result


def test_classes_of_an_arch_each_have_a_winner(store: Store) -> None:
    put(store, best(problem()), best(problem(), OTHER_HOST), best(problem(65)))
    with store.read() as session:
        both = winners.exact(session, HOST.arch, problem())
        assert {found.best.device_class for found in both} == {HOST_CLASS, OTHER_CLASS}
        everything = winners.for_arch(session, HOST.arch)
        assert len(everything) == 3
        assert winners.for_arch(session, HOST.arch, limit=1, after=everything[0].id) == everything[1:2]
        assert len(winners.for_arch(session, HOST_CLASS)) == 2


def test_a_list_is_narrowed_by_signature_and_by_what_repeats(store: Store) -> None:
    wide, tall = problem(64), problem(65, layout=Layout.TN)
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, dataclasses.replace(best(wide), repeatable=True))
        winners.put(session, dataclasses.replace(best(tall), repeatable=False))
        winners.put(session, best(problem(66)))

    def listed(**narrowed: Any) -> list[int]:
        with store.read() as session:
            return [stored.best.problem.m for stored in winners.for_arch(session, HOST.arch, **narrowed)]

    assert listed() == [64, 65, 66]
    assert listed(alike={"layout": Layout.TN}) == [65]
    assert listed(alike={"layout": Layout.NN, "dtype": wide.dtype}) == [64, 66]
    assert listed(repeatable=True) == [64]
    assert listed(alike={"layout": Layout.NN}, limit=1, after=1) == [66]


def test_winners_are_counted_by_where_they_come_from(store: Store) -> None:
    with store.begin() as session:
        entities.put_artifact(session, artifact())
        for m in (64, 65):
            winners.put(session, best(problem(m)))
        other = dataclasses.replace(PROVENANCE, compiler="cc 13")
        winners.put(session, dataclasses.replace(best(problem(66)), provenance=other))
        found = winners.origins(session, HOST_CLASS)
    expected = [("host", PROVENANCE, False, 2), ("host", other, False, 1)]
    assert sorted(found, key=lambda origin: -origin[3]) == expected


def test_a_winner_nobody_could_launch_is_refused(store: Store) -> None:
    with store.begin() as session, pytest.raises(StoreError, match="store it first"):
        winners.put(session, best(problem()))


def test_nearest_goes_by_ratio_and_never_across_signatures(store: Store) -> None:
    # From 64 x 64 x 64, squared log2 distances: 128 -> 1; 16 in m -> 4; 128 in m, n, k -> 3; 1024 -> 16.
    near = [problem(128), problem(128, 128, 128), problem(16), problem(1024)]
    others = [problem(64, layout=Layout.NT), GemmProblem(64, 64, 64, dtype="float64", layout="nn")]
    changes = ({"batch": 2}, {"has_bias": True}, {"has_c": True}, {"activation": "relu"})
    others += [dataclasses.replace(problem(), **change) for change in changes]
    put(store, *(best(of) for of in [*others, *near[::-1]]), best(problem(), OTHER_HOST))
    with store.read() as session:
        found = winners.nearest(session, HOST_CLASS, problem())
        assert [item.best.problem for item in found] == near
        assert winners.nearest(session, HOST_CLASS, problem(), 1) == found[:1]
        assert winners.nearest(session, HOST.arch, problem(), 1)[0].best.problem == problem()


def test_reading_cannot_write(store: Store, job: JobRecord) -> None:
    with store.read() as session, pytest.raises(DBAPIError, match=r"read-?only"):
        session.execute(text("UPDATE job SET attempt = 9"))
    with store.begin() as session:
        session.execute(text("UPDATE job SET attempt = 9"))
    with store.read() as session:
        assert jobs.get(session, job.id).attempt == 9


def test_an_exception_takes_everything_back(store: Store, job: JobRecord) -> None:
    def fail_midway() -> None:
        with store.begin() as session:
            jobs.finish(session, job.id, JobStatus.SUCCEEDED)
            raise KeyError

    with pytest.raises(KeyError):
        fail_midway()
    with store.read() as session:
        assert jobs.get(session, job.id) == job


def test_a_list_of_winners_decodes_no_samples(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, loads = list[Any](), json.loads

    def noted(text: str | bytes) -> Any:
        decoded.append(loads(text))
        return decoded[-1]

    with store.begin() as session:
        entities.put_artifact(session, artifact())
        winners.put(session, best(problem()))
    monkeypatch.setattr(json, "loads", noted)
    with store.read() as session:
        (found,) = reports.everywhere(session)
    assert (found.median_us, found.method) == (TIMING.median_us, TIMING.method)
    assert [one["samples_us"] for one in decoded if "samples_us" in one] == [[]]
