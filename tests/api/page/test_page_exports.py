"""What leaves the page: a report, a storage for optuna-dashboard, and the dashboard for Grafana."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import h200_store
import httpx2
import optuna
import optuna_dashboard
import pytest
from api_server import Server, finish, start
from typer.testing import CliRunner

from service.cli.main import app

ROOT = Path(__file__).parents[3]
CLASS = "sm_90-132sm-150gb-700w"
TRIALS = 12  # of each job


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("full")
    h200_store.write(folder, TRIALS)
    running = start(folder)
    yield running
    finish(running)


def run(*line: str) -> str:
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.long
def test_a_report_stands_alone(full: Server, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert "bytes" in run("report", str(file), "--device-class", CLASS, "--url", full.url)
    text = file.read_text()
    assert "8192x8192x8192 float16 nt" in text
    assert "interleaved-v5, sustained" in text
    assert not re.search(r'(?:src|href)="(?!#)', text.partition("<script>")[0].replace("data:", "#"))
    assert "default-src 'none'" in text
    charts = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert [json.loads(chart)["name"] for chart in charts] == ["payoff", "roofline"]


def test_a_report_of_an_unknown_class_is_refused_and_of_a_new_one_empty(full: Server) -> None:
    for path in ("report", "view/report"):
        refused = httpx2.get(f"{full.url}/{path}?device_class=sm_12", timeout=60)
        assert (refused.status_code, CLASS in refused.text) == (404, True), refused.text
    (device,) = httpx2.get(f"{full.url}/devices", timeout=60).json()["items"]
    answer = httpx2.get(f"{full.url}/report?device_class={device['device_class']}", timeout=60)
    assert answer.status_code == 200
    assert "attachment" in answer.headers["content-disposition"]
    assert "Nothing to draw yet" in answer.text


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.long
def test_optuna_dashboard_opens_an_export_of_which_optuna_said_nothing(
    full: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "studies.db"
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.enable_propagation()
    try:
        run("export", str(file), "--format", "optuna", "--url", full.url)
    finally:
        optuna.logging.disable_propagation()
    assert not [one.message for one in caplog.records if one.name.startswith("optuna")]
    names = optuna.study.get_all_study_names(f"sqlite:///{file}")
    assert len(names) == len(h200_store.SPACES)
    study = optuna.load_study(study_name=names[0], storage=f"sqlite:///{file}")
    assert len(study.trials) == TRIALS
    assert study.best_value == min(one.value for one in study.trials if one.value)
    dashboard = optuna_dashboard.wsgi(f"sqlite:///{file}")
    with make_server("127.0.0.1", 0, dashboard, handler_class=_Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            listed = httpx2.get(f"{url}/api/studies", timeout=60).json()["study_summaries"]
            assert {one["study_name"] for one in listed} == set(names)
            shown = httpx2.get(f"{url}/api/studies/{listed[0]['study_id']}?after=0", timeout=60).json()
            assert len(shown["trials"]) == TRIALS
        finally:
            server.shutdown()
            thread.join(20)


def test_an_export_overwrites_no_storage(full: Server, tmp_path: Path) -> None:
    file = tmp_path / "studies.db"
    file.write_bytes(b"kept")
    done = CliRunner().invoke(app, ["export", str(file), "--format", "optuna", "--url", full.url])
    assert (done.exit_code, "choose another name" in done.stderr) == (1, True)
    assert file.read_bytes() == b"kept"


def test_the_dashboard_of_grafana_asks_for_metrics_that_there_are(full: Server) -> None:
    text = httpx2.get(f"{full.url}/metrics", timeout=60).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    there = set(kinds)
    histograms = [name for name, kind in kinds.items() if kind == "histogram"]
    there |= {f"{name}{end}" for name in histograms for end in ("_bucket", "_sum", "_count")}
    dashboard = json.loads((ROOT / "docker" / "grafana" / "tilewright.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expr in asked for name in re.findall(r"tilewright_\w+", expr)}
    assert len(named) > 12
    assert named <= there
    own = {name for name in kinds if name.startswith("tilewright_") and not name.endswith("_created")}
    shown = {name for name in own if any(name in one for one in named)}
    assert own - shown <= {"tilewright_build_info"}
