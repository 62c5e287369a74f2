"""Views of results on a store that an H200 filled: each opens, names units and methods, and gives its CSV."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import h200_store
import httpx2
import pytest
from api_server import Server, finish, start
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem
from tilewright.errors import ServiceError

CLASS = "sm_90-132sm-150gb-700w"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("full")
    h200_store.write(folder, 60)
    running = start(folder)
    yield running
    finish(running)


@pytest.fixture
def pages(full: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=full.url, timeout=60.0) as browser:
        yield browser


@pytest.fixture
def job(pages: httpx2.Client) -> str:
    return str(pages.get("/jobs").json()["items"][-1]["id"])


VIEWS = (
    "/",
    "/view/now",
    "/view/jobs",
    "/view/results",
    f"/view/results?device_class={CLASS}&dtype=float16&family=wgmma_ws&verdict=kernel&days=3650",
    "/view/results/1",
    "/view/results/1/why",
    "/view/coverage",
    "/view/roofline",
    f"/view/compare?left={CLASS}&right={CLASS}",
    "/view/compare?what=jobs&left={job}&right={job}",
    "/view/jobs/{job}",
    "/view/jobs/{job}/knobs",
    "/view/jobs/{job}/parallel",
)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_opens_and_every_plot_comes_as_csv(pages: httpx2.Client, job: str, view: str) -> None:
    where = view.replace("{job}", job)
    answer = pages.get(where)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'class="button" href="(\?[^"]*csv=[^"]+)"', answer.text)
    assert len(links) == answer.text.count('data-save="svg"')
    for link in links:
        table = pages.get(where.partition("?")[0] + link.replace("&amp;", "&"))
        assert table.headers["content-type"] == "text/csv; charset=utf-8", link
        assert len(table.text.splitlines()) > 1


def test_losers_come_first(pages: httpx2.Client) -> None:
    rows = pages.get("/view/results?csv=payoff").text.splitlines()
    speedups = [float(row.split(",")[2]) for row in rows[1:]]
    assert len(speedups) > 30
    assert speedups == sorted(speedups)


def test_a_filter_leaves_what_it_names(pages: httpx2.Client) -> None:
    text = pages.get("/view/results?family=gemv_tma&csv=payoff").text
    assert {row.split(",")[8] for row in text.splitlines()[1:]} == {"gemv_tma"}
    assert "No result passes the filter" in pages.get("/view/results?dtype=int8").text
    assert pages.get("/view/results?dtype=nothing").status_code == 422
    assert pages.get("/view/results?unknown=1").status_code == 422


def test_a_result_tells_method_age_clock_and_power(pages: httpx2.Client) -> None:
    text = pages.get("/view/results/9").text
    for told in ("interleaved-v5, sustained", "<time ", " MHz", " W<", "µs", "source-changed", "truncated"):
        assert told in text, told


def test_why_tells_limits_waves_and_rules(pages: httpx2.Client) -> None:
    rows = pages.get("/view/results?csv=payoff").text.splitlines()
    (result,) = (row.split(",")[-1] for row in rows if row.startswith("8192x8192x8192 float16 nt"))
    text = pages.get(f"/view/results/{result}/why").text
    for told in ("multiply-adds per SM and clock", "Waves", "time computes D", "invalid:"):
        assert told in text, told


@pytest.mark.parametrize("path", ["/view/results/999999", "/view/results/0", "/view/results/999999/why"])
def test_an_unknown_result_is_a_page_that_says_so(pages: httpx2.Client, path: str) -> None:
    answer = pages.get(path)
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


def test_the_service_the_client_and_the_command_line_explain_alike(
    full: Server, pages: httpx2.Client
) -> None:
    problem = GemmProblem(8192, 8192, 8192)
    with Client(full.url) as client:
        found = client.explain_result(problem, arch="sm_90")
        with pytest.raises(ServiceError, match="has no answer"):
            client.explain_result(GemmProblem(8, 8, 8), arch="sm_90")
    query = {"m": 8192, "n": 8192, "k": 8192, "dtype": "float16", "layout": "nt", "device_class": CLASS}
    assert pages.get("/best-config", params=query).json()["artifact"], "which is remembered by its query"
    plain = pages.get("/explain", params=query).json()
    assert plain["explanation"]["nearest_limit"] == found.explanation.nearest_limit == "compute"
    assert found.runs == "exact"
    assert found.explanation.reached is not None
    assert 0.5 < found.explanation.reached < 1.0
    line = ["explain", "8192", "8192", "8192", "--arch", "sm_90", "--url", full.url]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 0, told.output
    assert "of the compute limit" in told.output
    assert "work tiles" in told.output
    assert "--all shows them" in told.output
