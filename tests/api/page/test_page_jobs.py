"""The start page, what goes on now, and jobs: started, followed and cancelled by forms."""

from __future__ import annotations

import html
import json
import re
import time

import httpx2
from api_server import Server

from tilewright import Client, GemmProblem, wire


def token(page: str) -> str:
    return re.findall(r'name="token" value="([0-9a-f]{64})"', page)[0]


def started(http: httpx2.Client, **fields: object) -> httpx2.Response:
    usual = {"m": 48, "n": 48, "k": 48, "dtype": "float32", "layout": "nn", "max_trials": 2, "device": "host"}
    return http.post("/view/jobs", data=usual | fields | {"token": token(http.get("/").text)})


def test_a_form_starts_a_job_that_the_api_knows(http: httpx2.Client, client: Client) -> None:
    answer = started(http)
    assert answer.status_code == 303
    job_id = answer.headers["location"].rpartition("/")[2]
    done = client.wait(job_id)
    assert (done.problem, done.max_trials) == (GemmProblem(48, 48, 48, "float32", "nn"), 2)
    page = http.get(answer.headers["location"]).text
    assert "48x48x48 float32 nn" in page
    assert "Its race gave the stored result" in page
    assert "sse-connect" not in page, "nothing is live of a job that ended"


def test_what_the_form_says_wrongly_is_told_and_kept(http: httpx2.Client) -> None:
    for fields, told in (
        ({"m": "0"}, "m:"),
        ({"m": "many"}, "m:"),
        ({"max_trials": "10001"}, "max_trials:"),
        ({"m": 4096}, "max_extent"),
        ({"dtype": "int4", "k": 47}, "must be a multiple of"),
        ({"device": "cuda:7"}, "there is no device"),
        ({"device": "gpu 7"}, "device: must be host or cuda:NUMBER, in a fleet after NODE/"),
        ({"dtype": "<script>"}, "dtype:"),
    ):
        answer = started(http, **fields)
        assert answer.status_code == 422, fields
        assert told in answer.text
        assert 'name="n" min="1" max="2147483647" required value="48"' in answer.text
        assert "<script>" not in answer.text.replace("<script>alert", "")


def test_a_form_that_was_refused_keeps_the_whole_problem(http: httpx2.Client) -> None:
    whole = {"batch": "2", "activation": "relu", "has_bias": "true", "out_dtype": "float64"}
    page = started(http, m=4096, **whole).text
    assert {name: re.findall(f'name="{name}" value="([^"]*)"', page) for name in whole} == {
        name: [value] for name, value in whole.items()
    }
    assert 'name="batch"' not in started(http, m=4096, batch=1).text


def test_a_running_job_is_live_and_stops_when_it_is_cancelled(
    http: httpx2.Client, client: Client, long_job: wire.JobView, server: Server
) -> None:
    while client.job(long_job.id).progress is None:
        time.sleep(0.02)
    page = http.get(f"/view/jobs/{long_job.id}").text
    assert f'sse-connect="/view/jobs/{long_job.id}/live?after=' in page
    assert long_job.id in http.get("/view/now").text
    seen, numbers = [], []
    with httpx2.stream("GET", f"{server.url}/view/jobs/{long_job.id}/live", timeout=60) as events:
        kind = ""
        for line in events.iter_lines():
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            if not line.startswith("data: "):
                continue
            seen.append(kind)
            if kind == "points":
                numbers += [number for number, _, _ in json.loads(line.removeprefix("data: "))]
            if kind == "panel" and len(seen) > 3 and "stops after" not in line:
                answer = http.post(f"/view/jobs/{long_job.id}/cancel", data={"token": token(page)})
                assert answer.status_code == 303
            if kind == "done":
                assert line == "data: cancelled"
                break
    assert {"panel", "points", "done"} == set(seen)
    assert numbers == sorted(set(numbers))


def test_a_filter_of_jobs_holds_on_every_page_of_them(http: httpx2.Client, client: Client) -> None:
    mine = {client.tune(GemmProblem(40, 24, k, "float32", "nn"), max_trials=1, seed=1).id for k in (16, 24)}
    client.tune(GemmProblem(41, 24, 16, "float32", "nn"), max_trials=1, seed=1)
    link, seen = "?m=40&prefix=1&limit=1", list[str]()
    while link:
        page = html.unescape(http.get(f"/view/jobs{link}").text)
        seen += re.findall(r'href="/view/jobs/([0-9a-f]{32})"', page)
        links = dict(re.findall(r'<a href="(\?[^"]+)">([^<]+)</a>', page))
        assert "?limit=1&prefix=1&m=40&status=failed" in {*links}
        link = next((where for where, told in links.items() if told == "Older jobs"), "")
    assert mine <= {*seen}
    # Other tests have this server tune with this m too.
    assert {*seen} == {one.id for one in client.jobs(limit=1000).items if 40 in (one.problem.m, *one.ladder)}


def test_an_unknown_job_is_a_page_that_says_so(http: httpx2.Client) -> None:
    for path in (f"/view/jobs/{'0' * 32}", f"/view/jobs/{'0' * 32}/live"):
        assert http.get(path).status_code == 404
    answer = http.get("/view/jobs/nonsense")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_numbers_of_a_plot_come_as_csv(http: httpx2.Client, tuned: wire.JobView) -> None:
    answer = http.get(f"/view/jobs/{tuned.id}?csv=convergence")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    first, *rows = answer.text.splitlines()
    assert first == "number,median (µs),best (µs),outcome,family"
    assert len(rows) == 4
    assert http.get(f"/view/jobs/{tuned.id}?csv=nothing").status_code == 404


def test_a_job_s_result_shows_the_samples_of_the_vendor_library(
    http: httpx2.Client, tuned: wire.JobView
) -> None:
    page = http.get(f"/view/jobs/{tuned.id}").text
    result = re.findall(r'href="(/view/results/[0-9]+)"', page)[0]
    rows = http.get(f"{result}?csv=distributions").text.splitlines()
    names = {row.split('"')[1] for row in rows[1:]}
    assert {"winner, head-to-head", "numpy, head-to-head"} <= names
    counts = {name: sum(f'"{name}"' in row for row in rows) for name in names}
    assert counts["winner, head-to-head"] == counts["numpy, head-to-head"] >= 16
    assert counts.get("winner, final") == counts.get("numpy, final")
