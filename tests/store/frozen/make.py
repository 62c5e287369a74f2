"""Makes the frozen database of the release of 2026-11-23 (commit 6fe203e), with that release's own code.

    git worktree add --detach OLD 6fe203e
    cd OLD && PYTHONPATH=OLD:OLD/client:OLD/tests/store:OLD/tests/api python THIS_FILE OUTPUT_FOLDER

It needs a C compiler, NVRTC and PostgreSQL, but no GPU. The old service tunes on the CPU, is killed in the
midst of a job, and imports CUDA results whose kernels the old families compile and whose times are made up.
``6fe203e.db.gz`` is the SQLite file, ``6fe203e.sql.gz`` a dump of the same rows in PostgreSQL, and
``6fe203e.ndjson.gz`` what the old ``GET /trials`` exports.
"""

from __future__ import annotations

import base64
import dataclasses
import gzip
import io
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from api_server import finish, start
from kernels.build import build
from postgres_server import find_binaries, running
from sqlalchemy import insert, text
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.policy import Policy
from tilewright.problem import GemmProblem
from tilewright.store_requests import Miss
from tilewright.trial import Outcome, Provenance, Timing, Trial
from tuner.store.recorder import JobRecorder

from kernels.registry import FAMILIES
from tilewright.client import Client
from tuner.job import TuneRequest
from tuner.store import jobs, keys, misses, retunes, submission
from tuner.store.database import Store
from tuner.store.models import Base
from tuner.store.records import JobStatus

NAME = "6fe203e"
H200 = DeviceSpec(
    "cuda", "sm_90", "NVIDIA H200", 132, 150109880320, 62914560, 232448, 233472, 4814, 1980, 700
)
H100 = DeviceSpec(
    "cuda", "sm_90", "NVIDIA H100 PCIe", 114, 85520809984, 52428800, 232448, 233472, 2039, 1755, 350
)
THEN = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)
SQUARE = GemmProblem(4096, 4096, 4096)
WIDE = GemmProblem(16, 6144, 4096)
ONE_ROW = GemmProblem(1, 4096, 4096)
FEW_ROWS = GemmProblem(8, 4096, 4096)
SMALL = GemmProblem(256, 256, 256, "float16", "nn")
TUNED = GemmProblem(64, 48, 32, "float32", "nn")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A made-up CUDA job: the first config wins, all others are trials."""

    device: DeviceSpec
    problem: GemmProblem
    configs: list[Config]
    families: list[str] = dataclasses.field(default_factory=list)


def pick(family: str, problem: GemmProblem, device: DeviceSpec, **changes: Any) -> Config:
    """The family's first pick with other values of some knobs."""
    config = Config.of(family, dict(FAMILIES[family].picks(problem, device)[0].knobs) | changes)
    reason = FAMILIES[family].why_invalid(config, problem, device)
    assert reason is None, f"{config}: {reason}"
    return config


def recorded() -> list[Recorded]:
    """Every renamed family, knob and value, and the removed ones."""
    ws = {"prefetch": 4, "hint_a": "evict_last"}
    placed = {"placement": "gpc", "snake_k": 1, "even_waves": 1, "beat": 512, "cluster_m": 2}
    split = {"schedule": "cooperative", "placement": "free", "snake_k": 0, "even_waves": 0, "beat": 0}
    split |= {"cluster_m": 1, "cluster_n": 1, "cluster_k": 1}
    square = [
        pick("wgmma_ws", SQUARE, H200, epilogue="deferred", group=8, **placed),
        pick("wgmma_ws", SQUARE, H200, **split, epilogue="tma", split_k=2, reduction="shares", **ws),
        pick("wgmma_ws", SQUARE, H200, **split, epilogue="tma", split_k=2, reduction="kernel"),
        pick("wgmma_ws", SQUARE, H200, **split, epilogue="tma", in_flight=0),
        pick("wgmma", SQUARE, H200, group=8),
        pick("mma_sync", SQUARE, H200, group=4, min_blocks=1),
    ]
    wide = [
        pick("wgmma_ws", WIDE, H200, **split, epilogue="tma", split_k=1, stream_k=1),
        pick("wgmma_ws", WIDE, H200, **split, epilogue="tma", split_k=1),
    ]
    row = [
        pick("stream", ONE_ROW, H200, hint="evict_first"),
        pick("stream", ONE_ROW, H200, hint="normal"),
        pick("skinny", ONE_ROW, H200),
    ]
    rows = [
        pick("skinny", FEW_ROWS, H200, weight_cache="no_allocate"),
        pick("skinny", FEW_ROWS, H200, weight_cache="evict_first"),
    ]
    small = [
        pick("mma_sync", SMALL, H200, min_blocks=2),
        pick("wmma", SMALL, H200),
        pick("simt", SMALL, H200),
    ]
    return [
        Recorded(H200, SQUARE, square),
        Recorded(H200, WIDE, wide, ["wgmma_ws"]),
        Recorded(H200, ONE_ROW, row, ["skinny", "stream"]),
        Recorded(H200, FEW_ROWS, rows, ["skinny"]),
        Recorded(H200, SMALL, small),
        Recorded(H100, FEW_ROWS, rows),
    ]


def timing(number: int) -> Timing:
    median = 20.0 + number
    return Timing(
        (median, median - 0.5, median + 0.5), median, median - 0.5, median + 0.5, "replay-v2", 1980.0
    )


def trial(number: int, config: Config, job: Recorded) -> Trial:
    artifact = build(FAMILIES[config.family], config, job.problem, job.device)
    place = job.device.device_class.id
    return Trial(
        number,
        config,
        Outcome.OK,
        timing=timing(number),
        artifact=artifact.digest,
        resources=artifact.resources,
        provenance=Provenance(
            artifact.source_digest, artifact.compiler, "nvidia 580, CUDA 13.0", place, "0.1.0", "replay-v2"
        ),
        origin="seed" if number < 2 else "search",
        repeatable=True,
    )


def lines(number: int, job: Recorded) -> Iterator[dict[str, Any]]:
    """A job as the old release exports it."""
    created = (THEN + timedelta(minutes=number)).isoformat()
    job_id = f"{int(THEN.timestamp() * 1e9) + number:016x}{number:016x}"
    tried = [trial(at, config, job) for at, config in enumerate(job.configs)]
    yield {
        "kind": "job", "id": job_id, "problem": job.problem.to_dict(), "device": job.device.to_dict(),
        "families": sorted(job.families), "max_trials": 100, "max_seconds": 0.0, "seed": number,
        "status": "succeeded", "created": created, "started": created, "finished": created,
    }  # fmt: skip
    for one in tried:
        plain = dataclasses.asdict(one) | {"config": one.config.to_dict(), "outcome": one.outcome.value}
        yield plain | {"kind": "trial", "job": job_id, "created": created}
    winner = tried[0]
    data = build(FAMILIES[winner.config.family], winner.config, job.problem, job.device).to_bytes()
    yield {"kind": "artifact", "digest": winner.artifact, "data": base64.b64encode(data).decode()}
    yield {
        "kind": "best", "problem": job.problem.to_dict(), "device_class": job.device.device_class.id,
        "arch": job.device.arch, "config": winner.config.to_dict(), "artifact": winner.artifact,
        "timing": dataclasses.asdict(timing(0)), "ties": [one.config.to_dict() for one in tried[1:2]],
        "baseline": {"name": "cublaslt", "median_us": 21.0, "detail": {"tile": "TILE_128x128"}},
        "speedup": 1.05, "speedup_low": 1.04, "speedup_high": 1.06, "confidence": 0.99,
        "provenance": dataclasses.asdict(winner.provenance), "job_id": job_id,
        "resources": dataclasses.asdict(winner.resources), "repeatable": True, "created": created,
    }  # fmt: skip


def tune(client: Client) -> str:
    """Jobs of the service's own device that ended, and misses; gives the device class."""
    options: dict[str, Any] = {"families": ["host"], "max_trials": 5}
    first = client.tune(TUNED, policy="tpe", min_gain_per_s=0.05, seed=7, idempotency_key="first", **options)
    client.tune(GemmProblem(48, 64, 40, "float32", "nt"), policy="brute", **options)
    client.cancel(client.tune(GemmProblem(512, 512, 512, "float32"), wait=False, **options).id)
    place = first.device_class
    client.report_misses(place, [Miss(GemmProblem(96, 96, 96, "float32", "nn"), 12, 3.5)])
    return place


def imported(client: Client) -> None:
    """The made-up CUDA results, what they are served as, and a pinned set."""
    body = "".join(
        json.dumps(line) + "\n" for number, job in enumerate(recorded()) for line in lines(number, job)
    )
    client.import_results(io.BytesIO(body.encode()))
    for spec in (H200, H100):
        place = spec.device_class.id
        assert client.best_config(FEW_ROWS, device_class=place).config.family == "skinny"
    pinned = client.current_set(H100.device_class.id)
    client.pin(H100.device_class.id, json.loads(pinned.content)["digest"])


def killed(server: Any, client: Client) -> None:
    """A job of which the service recorded some trials when it was killed."""
    job = client.tune(
        GemmProblem(80, 80, 80, "float32", "nn"), wait=False, families=["host"], max_trials=4, policy="random"
    )
    while not (now := client.job(job.id).progress) or now.measured < 2:
        time.sleep(0.01)
    server.stop(signal.SIGKILL)


def finish_by_hand(store: Store, place: str) -> None:
    """What no service has to run for: jobs that failed, wait or were left by another device, and a key."""
    with store.begin() as session:
        spec = next(job.device for job in jobs.listing(session, None, 50, None) if job.device_class == place)
        broken, _ = submission.submit(
            session, TuneRequest(GemmProblem(24, 24, 24, "float32"), ("host",)), spec
        )
        jobs.finish(session, broken.id, JobStatus.FAILED, "the device's process ended")
        waiting = TuneRequest(GemmProblem(40, 40, 40, "float32", "nn"), ("host",), 2)
        for policy in (Policy.RANDOM, Policy.BRUTE):
            submission.submit(session, dataclasses.replace(waiting, policy=policy), spec)
        retunes.ask(session, place, [TUNED], "0123456789abcdef")
        keys.create(session, "ci", frozenset({"read", "tune"}))
        misses.note(session, H200.device_class.id, [misses.Report(SQUARE, 3, 25.0, True)], 100, "stale")
    interrupted(store)


def interrupted(store: Store) -> None:
    """A CUDA job with two trials that differ in a knob which a later release drops."""
    problem = GemmProblem(8, 8192, 4096)
    ones = [pick("skinny", problem, H200, weight_cache=one) for one in ("no_allocate", "evict_first")]
    job = Recorded(H200, problem, ones)
    with store.begin() as session:
        submission.submit(session, TuneRequest(problem, ("skinny", "stream"), 20), H200)
        claimed = jobs.claim(session, H200.device_class.id, "another machine/0/0/0", lease_s=1.0)
    recorder = JobRecorder(store, claimed.id)
    for number, config in enumerate(ones):
        recorder.add_trial(trial(number, config, job), None)


def dump(database: Path) -> bytes:
    """The rows of the SQLite file in PostgreSQL, as statements."""
    binaries = find_binaries()
    with running(binaries) as server:
        target, source = Store.open(server.url("postgres")), Store.open(f"sqlite:///{database}")
        target.migrate()
        with source.engine.connect() as old, target.engine.begin() as new:
            new.execute(text("SET CONSTRAINTS ALL DEFERRED"))
            for table in Base.metadata.sorted_tables:
                rows = [dict(row._mapping) for row in old.execute(table.select())]
                if rows:
                    new.execute(insert(table), rows)
                if "id" in table.c and rows and isinstance(rows[0]["id"], int):
                    last = f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), max(id)) FROM {table}"
                    new.execute(text(last))
        target.close()
        source.close()
        command = ["pg_dump", "-h", "127.0.0.1", "-p", str(server.port), "-U", "tilewright"]
        options = ["--no-owner", "--no-privileges", "--rows-per-insert=100", "postgres"]
        found = subprocess.run([*command, *options], check=True, capture_output=True).stdout
    # NOTE: without what depends on the version of the tools and of the server.
    skipped = (b"\\", b"SET ", b"--", b"SELECT pg_catalog.set_config")
    return b"".join(line for line in found.splitlines(keepends=True) if not line.startswith(skipped))


def main(out: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twfrozen"))
    (folder / "service").mkdir()
    database = folder / "service/tilewright.db"
    server = start(folder / "service")
    try:
        with Client(server.url, timeout=120.0) as client:
            place = tune(client)
            imported(client)
            client.current_set(place)
            exported = io.BytesIO()
            client.export(exported)
            killed(server, client)
    finally:
        finish(server)
    store = Store.open(f"sqlite:///{database}")
    finish_by_hand(store, place)
    store.close()
    with sqlite3.connect(database) as plain:
        plain.execute("PRAGMA journal_mode=DELETE")
        plain.execute("VACUUM")
    plain.close()
    made = {"db": database.read_bytes(), "sql": dump(database), "ndjson": exported.getvalue()}
    for suffix, data in made.items():
        (out / f"{NAME}.{suffix}.gz").write_bytes(gzip.compress(data, 9, mtime=0))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
