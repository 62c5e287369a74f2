"""A service of today on the database of the release of 2026-11-23, and the import of its export."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from api_server import finish, start
from frozen_release import FEW_ROWS, H100, H200, ONE_ROW, SQUARE, STREAM_K, content, fill
from signers import signed_export, signer
from sqlalchemy import text

from kernels.registry import completed
from tilewright import Client, GemmProblem, wire
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tuner.devices.host import query_host
from tuner.store.access import keys
from tuner.store.database import Store
from tuner.store.records import canonical

WAITING = GemmProblem(40, 40, 40, "float32", "nn")
INTERRUPTED = GemmProblem(80, 80, 80, "float32", "nn")


@pytest.fixture
def frozen_url(empty_url: str) -> str:
    """The frozen database as if its host were this machine."""
    fill(empty_url)
    with closing(Store.open(empty_url)) as store, store.begin() as session:
        connection = session.connection()
        of_host = "SELECT device_class FROM device WHERE arch NOT LIKE 'sm%'"
        was = connection.execute(text(of_host)).scalar_one()
        here, spec = query_host().device_class, _written_before(query_host())
        values = {"was": was, "here": here.id, "arch": here.arch, "spec": spec}
        for name in ("job", "device", "best_config", "miss", "retune", "config_set", "served_set"):
            connection.execute(
                text(f"UPDATE {name} SET device_class = :here WHERE device_class = :was"), values
            )
        for name in ("device", "best_config", "config_set"):
            connection.execute(text(f"UPDATE {name} SET arch = :arch WHERE device_class = :here"), values)
        connection.execute(text("UPDATE device SET spec = :spec WHERE device_class = :here"), values)
    return empty_url


def _written_before(spec: DeviceSpec) -> str:
    fields = spec.to_dict()
    fields["units"], fields["smem_per_unit"] = fields.pop("sm_count"), fields.pop("smem_per_sm")
    return canonical(fields)


@contextmanager
def service(url: str, folder: Path) -> Iterator[Client]:
    """A service on a database, and a client with a key of every scope."""
    with closing(Store.open(url)) as store:
        store.migrate()
        with store.begin() as session:
            _, key = keys.create(session, "test", frozenset({"admin"}))
            keys.trust(session, signer(1).public_key, "vouches for exports of releases that signed nothing")
    (folder / "service").mkdir()
    server = start(folder / "service", database_url=url, retune_stale=False, lease_s=3)
    try:
        with Client(server.url, timeout=60.0, key=key) as client:
            yield client
    finally:
        finish(server)


def ended(client: Client, problem: GemmProblem) -> list[wire.JobView]:
    """The jobs of a problem, once all of them have ended."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        found = [job for job in client.jobs(limit=100).items if job.problem == problem]
        if found and all(job.finished for job in found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{found} did not end")


def export(client: Client) -> list[dict[str, Any]]:
    file = io.BytesIO()
    client.export(file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def old_lines(kind: str) -> list[dict[str, Any]]:
    """Lines of one kind of the old export."""
    return [line for line in map(json.loads, content("ndjson").splitlines()) if line["kind"] == kind]


def comparable(line: dict[str, Any], **ignored: object) -> dict[str, Any]:
    """A line without what is null or empty, its times as times."""
    found = {**line, "created": datetime.fromisoformat(line["created"]), **ignored}
    return {name: _without_empty(value) for name, value in found.items() if value is not None}


def _without_empty(value: object) -> object:
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if one not in (None, "")}
    return value


def today(config: dict[str, Any]) -> dict[str, Any]:
    """A config of the old export in today's words; one that used a removed value stays."""
    return completed(Config.from_dict(config)).to_dict()


@pytest.mark.long
def test_a_service_goes_on_where_the_old_one_stopped(frozen_url: str, tmp_path: Path) -> None:
    with service(frozen_url, tmp_path) as client:
        before = {info.digest for info in client.config_sets().items}
        assert len(before) == 2
        pinned = client.current_set(H100)
        assert pinned is not None
        assert json.loads(pinned.content)["digest"] in before
        assert client.best_config(FEW_ROWS, device_class=H100).config["warps_k"] == 8
        few, one = (client.best_config(problem, device_class=H200) for problem in (FEW_ROWS, ONE_ROW))
        assert (few.config.family, few.config["warps_k"]) == ("gemv", 8)
        assert (one.config.family, one.config["k_chunks"]) == ("gemv_tma", 2)
        assert few.staleness == "source-changed"
        square = client.best_config(SQUARE, device_class=H200)
        assert square.config["reduction"] == "none"
        assert client.artifact(client.best_config(STREAM_K, device_class=H200).artifact.digest)
        latest = client.current_set(H200)
        assert latest is not None
        families = {entry["config"]["family"] for entry in json.loads(latest.content)["entries"]}
        assert families == {"wgmma_ws", "gemv_tma", "gemv", "mma_sync"}
        assert {info.digest for info in client.config_sets().items} > before

        (resumed,) = ended(client, INTERRUPTED)
        assert resumed.status == "succeeded", resumed.error
        tried = client.trials(resumed.id, limit=100).items
        assert [trial.number for trial in tried] == list(range(len(tried)))
        assert len({trial.config for trial in tried}) == len(tried)
        assert [job.status for job in ended(client, WAITING)] == ["succeeded"] * 2
        assert client.best_config(WAITING, device_class=resumed.device_class).config.family == "host"

        exported = export(client)
        jobs = {line["id"]: line for line in exported if line["kind"] == "job"}
        assert {line["id"] for line in old_lines("job")} < jobs.keys()
        assert {line["sampler"] for line in jobs.values()} == {"tpe", "random", "staged"}
        assert 0.05 in {line["min_gain_per_s"] for line in jobs.values()}


@pytest.mark.long
def test_the_old_export_is_imported_whole(url: str, tmp_path: Path) -> None:
    with service(url, tmp_path) as client:
        old = signed_export(signer(1), content("ndjson"))
        answer = client.import_results(io.BytesIO(old))
        counts = {"jobs": "job", "trials": "trial", "artifacts": "artifact", "best": "best"}
        # Two device classes have the same kernel.
        whole = {name: len(old_lines(kind)) for name, kind in counts.items()}
        assert answer.added.model_dump() == {**whole, "artifacts": whole["artifacts"] - 1}
        again = client.import_results(io.BytesIO(old))
        assert again.known.model_dump() == whole
        exported = export(client)
    for old in old_lines("trial"):
        (new,) = (
            line
            for line in exported
            if line["kind"] == "trial" and (line["job"], line["number"]) == (old["job"], old["number"])
        )
        assert new["config"] == today(old["config"])
        assert new["origin"] == {"seed": "initial"}.get(old["origin"], old["origin"])
        assert comparable(old, config=0, origin=0) == comparable(new, config=0, origin=0)
    for old in old_lines("best"):
        (new,) = (
            line
            for line in exported
            if line["kind"] == "best"
            and (line["device_class"], line["problem"]) == (old["device_class"], old["problem"])
        )
        assert new["config"] == today(old["config"])
        assert new["ties"] == [today(config) for config in old["ties"]]
        assert comparable(old, config=0, ties=0) == comparable(new, config=0, ties=0)
    data = {line["digest"]: line["data"] for line in exported if line["kind"] == "artifact"}
    assert data == {line["digest"]: line["data"] for line in old_lines("artifact")}
    families = {tuple(line["families"]) for line in exported if line["kind"] == "job"}
    assert families == {(), ("host",), ("wgmma_ws",), ("gemv",), ("gemv", "gemv_tma")}
    units = {line["device"]["name"]: line["device"]["units"] for line in old_lines("job")}
    assert units == {
        line["device"]["name"]: line["device"]["sm_count"] for line in exported if line["kind"] == "job"
    }
