"""Jobs over HTTP: submitted, joined, listed, followed, cancelled, refused."""

from __future__ import annotations

import itertools
import json
import time

import httpx2
import pytest
from api_server import TUNED, Server, opened_database
from sqlalchemy import select, update
from store_samples import remove_problem

from tilewright import Client, GemmProblem, wire
from tilewright.errors import ServiceError
from tuner.job.progress import PHASES
from tuner.store.models import JobRow

SMALL = {"m": 32, "n": 32, "k": 32, "dtype": "float32", "layout": "nn", "max_trials": 2}
UNKNOWN = "0" * 32


def events(http: httpx2.Client, job_id: str, last_id: str = "") -> list[httpx2.ServerSentEvent]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with http.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event for event in httpx2.EventSource(response) if event.event != "message"]


def wait_for_status(client: Client, job_id: str, status: wire.JobStatus) -> wire.JobView:
    deadline = time.monotonic() + 30
    while (job := client.job(job_id)).status is not status:
        assert time.monotonic() < deadline, f"{job.status} instead of {status}"
        time.sleep(0.05)
    return job


def test_tune_is_accepted_and_ends_with_a_measured_winner(tuned: wire.JobView) -> None:
    assert tuned.status is wire.JobStatus.SUCCEEDED
    best = tuned.best
    assert best is not None
    assert best.problem == TUNED
    assert best.job_id == tuned.id
    assert best.timing.low_us <= best.timing.median_us <= best.timing.high_us
    assert best.tflops == pytest.approx(TUNED.flops / best.timing.median_us / 1e6)
    assert best.speedup.low <= best.speedup.value <= best.speedup.high
    assert best.baseline.name == "numpy"
    assert tuned.baseline_ratio == best.speedup.value
    assert tuned.progress is not None
    assert tuned.progress.measured == 4
    assert tuned.finished >= tuned.started >= tuned.created  # type: ignore[operator]


def test_the_policy_travels_and_the_reason_of_the_end_comes_back(client: Client) -> None:
    job = client.tune(GemmProblem(32, 32, 32, "float32", "nn"), max_trials=2, sampler="random", seed=9)
    assert (job.sampler, job.min_gain_per_s) == ("random", 0.0)
    assert job.progress is not None
    assert job.progress.stopped == "budget spent"
    spent = job.progress
    assert spent.race_s > 0.0
    phases = [getattr(spent, f"{phase}_s") for phase in PHASES]
    assert sum(phases) <= spent.elapsed_s
    assert min(phases) >= 0.0 < spent.open_s
    assert spent.transfer_s > 0.0 < spent.store_s


@pytest.mark.parametrize("wrong", [{"sampler": "magic"}, {"min_gain_per_s": -1}, {"min_gain_per_s": 2}])
def test_a_policy_that_does_not_exist_is_refused(http: httpx2.Client, wrong: dict[str, object]) -> None:
    response = http.post("/tune", json=SMALL | wrong)
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == f"#/{next(iter(wrong))}"


def test_post_tune_says_where_the_job_is(http: httpx2.Client, client: Client) -> None:
    response = http.post("/tune", json=SMALL)
    assert response.status_code == 202
    body = response.json()
    assert response.headers["location"] == f"/jobs/{body['id']}" == body["links"]["self"]
    assert int(response.headers["retry-after"]) >= 1
    assert http.get(response.headers["location"]).status_code == 200
    client.wait(body["id"])


def test_identical_work_in_flight_is_one_job(long_job: wire.JobView, client: Client) -> None:
    again = client.tune(long_job.problem, max_trials=5000, wait=False)
    other = client.tune(long_job.problem, max_trials=4999, wait=False)
    assert again.id == long_job.id
    assert other.id != long_job.id
    client.cancel(other.id)


def test_idempotency_key_gives_the_same_job_after_its_end(client: Client, http: httpx2.Client) -> None:
    first = client.tune(GemmProblem(16, 16, 16, "float32"), max_trials=1, idempotency_key="once")
    again = client.tune(GemmProblem(16, 16, 16, "float32"), max_trials=1, idempotency_key="once", wait=False)
    assert again.id == first.id
    response = http.post("/tune", json=SMALL, headers={"Idempotency-Key": "once"})
    assert response.status_code == 422
    assert response.json()["type"] == "urn:tilewright:problem:idempotency-mismatch"


def test_a_key_whose_job_was_deleted_is_told_so(client: Client, server: Server) -> None:
    problem = GemmProblem(24, 16, 16, "float32")
    client.tune(problem, max_trials=1, idempotency_key="deleted")
    with opened_database(server) as store, store.begin() as session:
        remove_problem(session, problem)
    with pytest.raises(ServiceError, match="deleted since; use a new key") as refused:
        client.tune(problem, max_trials=1, idempotency_key="deleted", wait=False)
    assert refused.value.status == 422
    assert "used for another" not in refused.value.problem["title"]


def test_a_running_job_is_cancelled_and_keeps_its_trials(long_job: wire.JobView, client: Client) -> None:
    wait_for_status(client, long_job.id, wire.JobStatus.RUNNING)
    while not client.trials(long_job.id).items:
        time.sleep(0.05)
    asked = time.monotonic()
    assert client.cancel(long_job.id).cancel_requested
    ended = client.wait(long_job.id)
    assert time.monotonic() - asked < 10
    assert ended.status is wire.JobStatus.CANCELLED
    assert client.cancel(long_job.id).status is wire.JobStatus.CANCELLED
    assert client.trials(long_job.id).items


def test_a_queued_job_is_cancelled_at_once(long_job: wire.JobView, client: Client) -> None:
    wait_for_status(client, long_job.id, wire.JobStatus.RUNNING)
    waiting = client.tune(GemmProblem(24, 24, 24, "float32"), max_trials=1, wait=False)
    assert waiting.status is wire.JobStatus.QUEUED
    assert client.cancel(waiting.id).status is wire.JobStatus.CANCELLED


def test_a_full_queue_refuses_and_changes_nothing(
    long_job: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    wait_for_status(client, long_job.id, wire.JobStatus.RUNNING)
    queued = [client.tune(GemmProblem(20 + i, 8, 8, "float32"), max_trials=1, wait=False) for i in range(3)]
    before = len(client.jobs(limit=1000).items)
    response = http.post("/tune", json=SMALL | {"m": 31})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert "max_queue" in response.json()["detail"]
    assert (
        http.post(
            "/tune", json=SMALL | {"m": 20, "n": 8, "k": 8, "layout": "nt", "max_trials": 1}
        ).status_code
        == 202
    )
    assert len(client.jobs(limit=1000).items) == before
    for job in queued:
        client.cancel(job.id)


def test_jobs_are_listed_newest_first_in_pages(
    tuned: wire.JobView, client: Client, http: httpx2.Client
) -> None:
    client.tune(GemmProblem(17, 16, 16, "float32"), max_trials=1)
    every = [job.id for job in client.jobs(limit=1000).items]
    assert every == sorted(every, reverse=True)
    assert tuned.id in every
    page = client.jobs(limit=1)
    assert [job.id for job in page.items] == every[:1]
    following = client.jobs(limit=1, cursor=page.next)
    assert [job.id for job in following.items] == every[1:2]
    succeeded = client.jobs(wire.JobStatus.SUCCEEDED, limit=1000).items
    assert {job.status for job in succeeded} == {wire.JobStatus.SUCCEEDED}
    assert 'rel="next"' in http.get("/jobs", params={"limit": 1}).headers["link"]


def test_trials_are_listed_in_pages_with_their_samples(tuned: wire.JobView, client: Client) -> None:
    whole = client.trials(tuned.id, limit=1000)
    assert [trial.number for trial in whole.items] == list(range(len(whole.items)))
    measured = [trial for trial in whole.items if trial.timing]
    assert len(measured) == 4
    assert all(trial.timing.samples_us and trial.artifact and trial.provenance for trial in measured)  # type: ignore[union-attr]
    page = client.trials(tuned.id, limit=2)
    following = client.trials(tuned.id, limit=2, cursor=page.next)
    assert page.items + following.items == whole.items[:4]


def test_events_tell_the_whole_job_and_resume_anywhere(tuned: wire.JobView, http: httpx2.Client) -> None:
    whole = events(http, tuned.id)
    kinds = [event.event for event in whole]
    assert kinds[0] == "status"
    assert kinds[-1] == "done"
    assert {"progress", "trial", "best"} <= set(kinds)
    assert json.loads(whole[-1].data) == {"status": "succeeded"}
    ids = [int(event.id) for event in whole[:-1]]
    assert all(earlier < later for earlier, later in itertools.pairwise(ids))
    middle = len(ids) // 2
    resumed = events(http, tuned.id, str(ids[middle]))
    assert [(event.event, event.data) for event in resumed] == [
        (event.event, event.data) for event in whole[middle + 1 :]
    ]


def test_events_of_a_running_job_arrive_while_it_runs(long_job: wire.JobView, client: Client) -> None:
    seen: list[wire.JobProgress] = []

    def look(progress: wire.JobProgress) -> None:
        seen.append(progress)
        if progress.measured >= 2:
            client.cancel(long_job.id)

    assert client.wait(long_job.id, look).status is wire.JobStatus.CANCELLED
    assert seen[-1].measured >= 2
    assert seen[-1].best_us is not None


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"m": 0}, "invalid-request", "#/m"),
        ({"m": 2**31}, "invalid-request", "#/m"),
        ({"m": "12"}, "invalid-request", "#/m"),
        ({"m": True}, "invalid-request", "#/m"),
        ({"m": 3.5}, "invalid-request", "#/m"),
        ({"dtype": "float8"}, "invalid-request", "#/dtype"),
        ({"layout": "xx"}, "invalid-request", "#/layout"),
        ({"source": "asm"}, "invalid-request", "#/source"),
        ({"max_trials": 0}, "invalid-request", "#/max_trials"),
        ({"device": "gpu; rm"}, "invalid-request", "#/device"),
        ({"families": ["../x"]}, "invalid-request", "#/families/0"),
        ({"acc_dtype": "float16"}, "invalid-problem", "accumulates in float32"),
        ({"m": 2049}, "over-limit", "max_extent"),
        ({"dtype": "float16"}, "unsupported", "host"),
        ({"device": "cuda:7"}, "unsupported", "cuda:7"),
        ({"families": ["nothing"]}, "unsupported", "nothing"),
        ({"families": ["mma_sync"]}, "unsupported", "mma_sync"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_the_rule(
    http: httpx2.Client, client: Client, change: dict[str, object], kind: str, says: str
) -> None:
    before = len(client.jobs(limit=1000).items)
    response = http.post("/tune", json=SMALL | change)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["type"] == f"urn:tilewright:problem:{kind}"
    assert says in response.text
    assert len(client.jobs(limit=1000).items) == before


def test_a_missing_field_and_broken_json_are_told(http: httpx2.Client) -> None:
    missing = http.post("/tune", json={"m": 1, "n": 2})
    assert missing.status_code == 422
    assert missing.json()["errors"] == [{"detail": "Field required", "pointer": "#/k"}]
    broken = http.post("/tune", content=b"{", headers={"Content-Type": "application/json"})
    assert broken.status_code == 422
    assert broken.json()["errors"][0]["pointer"] == "#"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", "/trials"), ("GET", "/events"), ("DELETE", "")]
)
def test_an_unknown_job_is_not_found(http: httpx2.Client, method: str, path: str) -> None:
    response = http.request(method, f"/jobs/{UNKNOWN}{path}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert "GET /jobs" in response.json()["detail"]


def test_the_answer_for_a_job_that_cannot_be_read_says_that_it_is_cancelled(
    long_job: wire.JobView, client: Client, http: httpx2.Client, server: Server
) -> None:
    wait_for_status(client, long_job.id, wire.JobStatus.RUNNING)
    waits = client.tune(GemmProblem(73, 64, 64, "float64", "nn"), max_trials=5, wait=False)
    this = JobRow.id == waits.id
    with opened_database(server) as store:
        with store.begin() as session:
            options = session.scalars(select(JobRow.options).where(this)).one()
            session.execute(update(JobRow).where(this).values(options={"sampler": "oracle"}))
        told = [http.delete(f"/jobs/{waits.id}") for _ in range(2)]
        with store.begin() as session:
            session.execute(update(JobRow).where(this).values(options=options))
    assert {answer.status_code for answer in told} == {501}
    first, second = (answer.json()["detail"] for answer in told)
    assert first.startswith(f"this release cannot read job {waits.id}")
    assert first.endswith("; it is cancelled anyway")
    assert second.endswith("; it had ended, or was cancelled before")
    assert client.job(waits.id).status is wire.JobStatus.CANCELLED
