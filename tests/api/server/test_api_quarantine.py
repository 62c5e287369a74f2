"""``/quarantine``: a winner whose config broke its device class is not served until it is released."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from api_server import Server, finish, start
from typer.testing import CliRunner

from service.cli.main import app
from tilewright import Client, GemmProblem, wire
from tilewright.errors import ServiceError
from tilewright.schema.trial import Outcome, Trial
from tuner.store.database import Store
from tuner.store.faults import quarantine

SHAPE = GemmProblem(32, 32, 32, "float32", "nn")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("quarantine"))
    yield running
    finish(running)


@pytest.fixture(scope="module")
def won(own: Server) -> wire.BestConfigView:
    with Client(own.url, timeout=60.0) as client:
        best = client.tune(SHAPE, max_trials=3).best
    assert best is not None
    return best


def broke(server: Server, won: wire.BestConfigView, **changes: str) -> None:
    """Another service of the database, whose device the winner's kernel hung."""
    was = won.provenance if not changes else type(won.provenance)(**vars_of(won) | changes)
    hung = Trial(5, won.config, outcome=Outcome.TIMEOUT, message="no answer", provenance=was, own_fault=True)
    store = Store.open(f"sqlite:///{Path(server.folder) / 'tilewright.db'}")
    with store.begin() as session:
        quarantine.put(session, hung, quarantine.Evidence(SHAPE, won.job_id, "cuda:3 of node-7"))
    store.close()


def vars_of(won: wire.BestConfigView) -> dict[str, str]:
    was = won.provenance
    return {name: getattr(was, name) for name in was.__slots__}


def test_a_winner_that_broke_is_withdrawn_everywhere_until_it_is_released(
    own: Server, won: wire.BestConfigView
) -> None:
    with Client(own.url, timeout=60.0) as client:
        assert client.best_config(SHAPE, arch=won.arch).config == won.config
        answer = client.current_set(won.device_class)
        assert answer is not None
        pinned = client.pin(won.device_class, answer.config_set.digest)
        broke(own, won)
        [entry] = client.quarantine(won.device_class).items
        assert (entry.config, entry.trial, entry.job_id) == (won.config, 5, won.job_id)
        assert (entry.outcome, entry.message, entry.device) == (
            Outcome.TIMEOUT,
            "no answer",
            "cuda:3 of node-7",
        )
        assert (entry.problem, entry.winners, entry.staleness) == (SHAPE, 1, "fresh")
        with pytest.raises(ServiceError, match="no answer on"):
            client.best_config(SHAPE, arch=won.arch)
        assert client.configs(arch=won.arch) == []
        [looked_up] = client.lookup_many([SHAPE], device_class=won.device_class)
        assert looked_up.entry is None
        served = client.current_set(won.device_class)
        assert served is not None
        assert served.config_set.digest != pinned.digest
        assert served.config_set.entries == ()
        client.release_quarantined(entry.id)
        assert client.quarantine().items == []
        assert client.best_config(SHAPE, arch=won.arch).config == won.config
        assert client.audit().items[0].action == "release from quarantine"
        with pytest.raises(ServiceError, match="GET /quarantine lists"):
            client.release_quarantined(entry.id)


def test_an_entry_of_another_driver_holds_no_more(own: Server, won: wire.BestConfigView) -> None:
    with Client(own.url, timeout=60.0) as client:
        broke(own, won, driver="Linux 1.0")
        [entry] = client.quarantine().items
        assert entry.staleness == "driver-changed"
        client.release_quarantined(entry.id)


def test_the_command_line_and_the_page_show_what_is_quarantined(
    own: Server, won: wire.BestConfigView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_URL", own.url)
    broke(own, won)
    run = CliRunner()
    listed = json.loads(run.invoke(app, ["quarantine", "ls", "--json"]).stdout)
    table = run.invoke(app, ["quarantine", "ls"]).stdout
    assert "cuda:3 of node-7" in table
    assert won.job_id[:12] in table
    page = httpx2.get(f"{own.url}/view/now").text
    assert "cuda:3 of node-7" in page
    assert f'href="/view/jobs/{won.job_id}"' in page
    released = run.invoke(app, ["quarantine", "release", str(listed[0]["id"])])
    assert (released.exit_code, released.stdout) == (0, f"{listed[0]['id']} is released\n")
    assert json.loads(run.invoke(app, ["quarantine", "ls", "--json"]).stdout) == []
