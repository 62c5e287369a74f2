"""M ladders over HTTP on the CPU: one job, a winner for each row, ranges, events, cancellation, refusals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import httpx2
import pytest
from api_server import Server, admin_key, finish, start, trust
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem, wire
from tilewright.http.arguments import Miss

WEIGHT = GemmProblem(128, 96, 64, "float32", "nn")
ROWS = (16, 32, 64, 128)


@pytest.fixture(scope="session")
def ladder(client: Client) -> wire.JobView:
    """A finished job on a ladder."""
    return client.tune(WEIGHT, m=ROWS, max_trials=4, seed=3)


def test_one_job_has_a_winner_for_each_row(client: Client, ladder: wire.JobView) -> None:
    assert (ladder.ladder, ladder.problem, ladder.best) == (ROWS, WEIGHT, None)
    assert [row.m for row in ladder.rows] == list(ROWS)
    for row in ladder.rows:
        best = client.best_config(
            GemmProblem(row.m, 96, 64, "float32", "nn"), device_class=ladder.device_class
        )
        assert (best.job_id, best.artifact, best.config) == (ladder.id, row.artifact, row.config)
        assert (best.speedup, best.verdict) == (row.speedup, row.verdict)
        assert row.median_us * row.speedup.value > 0.0
        assert 0.0 <= row.regret < 0.5
    assert [(one.m, one.outcome, one.error) for one in ladder.outcomes] == [(m, "tuned", None) for m in ROWS]
    progress = ladder.progress
    assert progress is not None
    assert (progress.phase, progress.rows_done) == ("done", len(ROWS))
    assert client.job(ladder.id).rows == ladder.rows


def test_no_answer_says_that_rows_of_a_ladder_were_not_tuned_which_were(
    client: Client, ladder: wire.JobView, tuned: wire.JobView
) -> None:
    again = client.cancel(ladder.id)
    assert (again.rows, again.outcomes) == (ladder.rows, ladder.outcomes)
    assert client.cancel(tuned.id).best == client.job(tuned.id).best
    [listed] = (job for job in client.jobs(limit=1000).items if job.id == ladder.id)
    assert (listed.rows, listed.outcomes) == ([], [])  # they are of GET /jobs/{job_id}


def test_a_ladder_that_is_done_names_its_rows(
    server: Server, ladder: wire.JobView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["jobs", "watch", ladder.id, "--url", server.url])
    (bar,) = (line for line in shown.stderr.splitlines() if line.startswith("done"))
    assert bar.startswith("done, 4 rows ")
    assert " best " not in bar  # which row's?


def test_times_of_a_ladder_are_told_with_their_row(server: Server, ladder: wire.JobView) -> None:
    header, *trials = CliRunner().invoke(app, ["trials", ladder.id, "--url", server.url]).stdout.splitlines()
    assert header.split()[:2] == ["trial", "m"]
    assert {line.split()[1] for line in trials} == {str(m) for m in ROWS}
    listed = CliRunner().invoke(app, ["jobs", "show", ladder.id, "--url", server.url]).stdout
    assert listed.splitlines()[1].split()[-1] == "-"  # not the time of one row


def test_rows_of_one_kernel_are_a_range(ladder: wire.JobView) -> None:
    assert ladder.ranges[0].first == ROWS[0]
    assert ladder.ranges[-1].last == ROWS[-1]
    for one in ladder.ranges:
        inside = [row for row in ladder.rows if one.first <= row.m <= one.last]
        assert {row.artifact.digest for row in inside} == {one.artifact.digest}
        assert one.regret == max(row.regret for row in inside)
    assert sum(one.first <= row.m <= one.last for one in ladder.ranges for row in ladder.rows) == len(ROWS)


def test_trials_and_events_tell_their_row(client: Client, http: httpx2.Client, ladder: wire.JobView) -> None:
    trials = client.trials(ladder.id, limit=1000).items
    assert {trial.m for trial in trials} == set(ROWS)
    assert [trial.number for trial in trials] == list(range(len(trials)))
    with http.stream("GET", f"/jobs/{ladder.id}/events") as stream:
        text = stream.read().decode()
    assert text.count("event: best") == len(ROWS)
    for m in ROWS:
        assert f'"m":{m}' in text.replace(" ", "")


def test_the_same_ladder_as_a_list_a_range_and_a_text_is_one_job(client: Client, http: httpx2.Client) -> None:
    problem = GemmProblem(64, 72, 64, "float32", "nn")
    with_text = client.tune(problem, m="8..64", max_trials=3, seed=9, wait=False)
    assert with_text.ladder == (8, 16, 32, 64)
    body = {**problem.to_dict(), "max_trials": 3, "seed": 9}
    for rows in ([64, 32, 16, 8, 8], {"first": 8, "last": 64}):
        answer = http.post("/tune", json=body | {"m": rows})
        assert (answer.status_code, answer.json()["id"]) == (202, with_text.id)
    client.cancel(with_text.id)
    assert client.wait(with_text.id).status.final


def test_one_m_in_a_list_is_no_ladder(client: Client) -> None:
    job = client.tune(WEIGHT, m=[24], max_trials=1, wait=False)
    assert (job.ladder, job.problem.m) == ((), 24)
    client.cancel(job.id)
    client.wait(job.id)


@pytest.mark.parametrize(
    ("rows", "status", "told"),
    [
        ([], 422, "#/m"),
        ([0], 422, "#/m/0"),
        (["8"], 422, "#/m/0"),
        ([8, True], 422, "#/m/1"),
        (list(range(1, 70)), 422, "#/m"),
        ({"first": 1}, 422, "#/m/last"),
        ({"first": 1, "last": 8, "factor": 3}, 422, "#/m/factor"),
        ({"first": 8, "last": 4}, 422, "must go up"),
        ({"first": 1, "last": 100, "step": 1}, 422, "at most 64"),
        ({"first": 1, "last": 2**31 - 1}, 422, "max_extent"),
        ("1..8", 422, "#/m"),
        (8.5, 422, "#/m"),
    ],
    ids=str,
)
def test_what_is_no_ladder_is_refused(http: httpx2.Client, rows: Any, status: int, told: str) -> None:
    answer = http.post("/tune", json=WEIGHT.to_dict() | {"m": rows})
    assert (answer.status_code, told in answer.text) == (status, True), answer.text


def test_a_cancelled_ladder_keeps_what_it_has(client: Client) -> None:
    problem = GemmProblem(512, 80, 64, "float64", "nn")
    job = client.tune(problem, m="64..512", max_trials=3000, wait=False)
    done: list[int] = []

    def stop(progress: wire.JobProgress) -> None:
        if progress.measured >= 3 and not done:
            done.append(progress.measured)
            client.cancel(job.id)

    ended = client.wait(job.id, stop)
    assert (ended.status, ended.rows) == (wire.JobStatus.CANCELLED, [])
    assert len(client.trials(job.id).items) >= 3


def test_a_row_of_a_live_ladder_is_no_miss(client: Client) -> None:
    problem = GemmProblem(512, 88, 64, "float64", "nn")
    job = client.tune(problem, m=[128, 512], max_trials=3000, wait=False)
    row = GemmProblem(128, 88, 64, "float64", "nn")
    try:
        client.report_misses(job.device_class, [Miss(row, 2, 5.0)])
        assert row not in [miss.problem for miss in client.misses(limit=1000)]
    finally:
        client.cancel(job.id)
        client.wait(job.id)
    assert row in [miss.problem for miss in client.misses(limit=1000)]


@pytest.mark.long
def test_misses_of_one_weight_are_one_ladder(client: Client) -> None:
    place = client.devices()[0].device_class
    of_weight = [GemmProblem(m, 104, 64, "float32", "nn") for m in (96, 12, 48)]
    alone = GemmProblem(48, 112, 64, "float32", "nn")
    counts = [Miss(problem, 1, 9e11) for problem in of_weight] + [Miss(alone, 1, 8e11)]
    client.report_misses(place, counts)
    on_ladder, single = client.tune_misses(place, 4, max_trials=1)
    assert (on_ladder.ladder, on_ladder.problem) == ((12, 48, 96), of_weight[0])
    assert (single.ladder, single.problem) == ((), alone)
    assert [row.m for row in client.wait(on_ladder.id).rows] == [12, 48, 96]
    client.wait(single.id)
    left = {miss.problem for miss in client.misses(place, limit=1000)}
    assert left.isdisjoint([*of_weight, alone])


def test_m_between_two_rows_is_answered_as_the_set_says(client: Client, ladder: wire.JobView) -> None:
    """The lookup, the best config and the client's own lookup say the same for each M."""
    problems = [GemmProblem(m, 96, 64, "float32", "nn") for m in (20, 40, 100, 127)]
    options: Any = {"device_class": ladder.device_class, "match": "nearest", "max_regret": 1000.0}
    found = client.lookup_many(problems, **options)
    rows = {row.m: row for row in ladder.rows}
    for problem, view in zip(problems, found, strict=True):
        assert view.kind in ("ladder", "vendor"), view
        if view.kind == "vendor":
            # Nor is there a kernel if neither row's winner runs on the other row.
            told = ("vendor library was faster", "no kernel of its ladder may run", "no tuned kernel")
            assert any(reason in view.reason for reason in told)
            continue
        assert view.entry is not None
        below = max(m for m in ROWS if m < problem.m)
        above = min(m for m in ROWS if m > problem.m)
        assert view.entry.problem.m in (below, above)
        assert view.entry.artifact == rows[view.entry.problem.m].artifact.digest
        best = client.best_config(problem, **options)
        assert (best.match.kind, best.expected_regret) == ("ladder", view.expected_regret)


def test_an_import_tells_of_the_rows_whose_winners_it_brought(
    client: Client, server: Server, ladder: wire.JobView, tmp_path: Path
) -> None:
    file = io.BytesIO()
    client.export(file)
    other = start(tmp_path, retune_stale=False)
    try:
        trust(other, server.signer.public_key)
        key = admin_key(other)
        with Client(other.url, timeout=60.0, key=key) as target:
            target.import_results(io.BytesIO(file.getvalue()))
            there = target.job(ladder.id)
            assert (there.rows, there.ranges) == (ladder.rows, ladder.ranges)
            assert there.outcomes == ladder.outcomes
            query, headers = _query(ladder, 32), {"Authorization": f"Bearer {key}"}
            httpx2.delete(f"{other.url}/best-config", params=query, headers=headers).raise_for_status()
            left = [(one.m, one.outcome) for one in target.job(ladder.id).outcomes]
            assert left == [(m, "tuned") for m in (16, 64, 128)], "nothing is known of the other row"
    finally:
        finish(other)


def _query(ladder: wire.JobView, m: int) -> dict[str, object]:
    problem = {"m": m, "n": WEIGHT.n, "k": WEIGHT.k, "dtype": "float32", "layout": "nn"}
    return problem | {"device_class": ladder.device_class}
