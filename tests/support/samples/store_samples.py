"""Vocabulary to fill a store with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from tilewright.artifact import Artifact, Grid, LaunchPlan, Pointer, Preconditions, Resources, Scalar, Serves
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.entries import Import, RecordCounts
from tilewright.schema.job import TuneRequest
from tilewright.schema.problem import DType, GemmProblem, Layout
from tilewright.schema.trial import Baseline, BestConfig, Outcome, Provenance, Timing, Trial, VendorSamples
from tuner.store import imports
from tuner.store.database import Store, lock_results

HOST = DeviceSpec("host", "x86_64_v3", "Some CPU", sm_count=2, memory_bytes=8 << 30, l2_bytes=32 << 20)
OTHER_HOST = dataclasses.replace(HOST, name="Another CPU")
HOST_CLASS = HOST.device_class.id
OTHER_CLASS = OTHER_HOST.device_class.id

PROVENANCE = Provenance("a" * 64, "cc 12", "linux 6", HOST_CLASS, "0.1.0", "rotated-1")
TIMING = Timing((3.0, 1.0, 2.0), 2.0, 1.0, 3.0, "rotated-1", mhz=1700.5)

VENDOR_SAMPLES = VendorSamples((2.6, 2.5, 2.4), (2.75, 2.625), (2.25, 2.125), 1650.5, 90.0)

_WAITERS = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
NEEDS_NOTHING = Preconditions()

ENTERED = datetime(2026, 1, 2, tzinfo=UTC)
TRUSTED = Import("1" * 32, True, f"ed25519:{'1' * 64}", "some key", ENTERED)
UNTRUSTED = Import("2" * 32, False, None, None, ENTERED)


def problem(m: int = 64, n: int = 64, k: int = 64, layout: Layout = Layout.NN) -> GemmProblem:
    return GemmProblem(m, n, k, dtype=DType.FLOAT32, layout=layout)


def request(m: int = 64, seed: int = 0) -> TuneRequest:
    return TuneRequest(problem(m), families=("host",), max_trials=7, max_seconds=1.5, seed=seed)


def config(tile: int = 8) -> Config:
    return Config.of("host", {"mc": tile, "order": "snake"})


def artifact(binary: bytes = b"\x7fELF\0\xff", needs: Preconditions = NEEDS_NOTHING) -> Artifact:
    plan = LaunchPlan(
        format="elf",
        target="x86_64_v3",
        entry="gemm",
        block=(2, 1, 1),
        grid=Grid(64, 64),
        args=(Pointer("a"), Scalar("m", "int32")),
        serves=Serves.of(problem()),
        preconditions=needs,
    )
    return Artifact(plan, Resources(), "a" * 64, "cc 12", binary)


def trial(number: int, median: float = 2.0, outcome: Outcome = Outcome.OK) -> Trial:
    return Trial(
        number,
        config(number + 1),
        outcome=outcome,
        timing=dataclasses.replace(TIMING, median_us=median),
        artifact=artifact().digest,
        resources=Resources(registers=64),
        provenance=PROVENANCE,
        compile_s=0.5,
        check_s=0.25,
        measure_s=0.125,
        origin="initial",
    )


def failed_trial(number: int, message: str = "no such register") -> Trial:
    return Trial(number, config(number + 1), outcome=Outcome.COMPILE_ERROR, message=message)


def best(
    of: GemmProblem, device: DeviceSpec = HOST, speedup: float = 1.25, disturbed: str = ""
) -> BestConfig:
    return BestConfig(
        problem=of,
        device_class=device.device_class.id,
        arch=device.arch,
        config=config(16),
        artifact=artifact().digest,
        timing=dataclasses.replace(TIMING, disturbed=disturbed),
        ties=(config(17), config(18)),
        baseline=Baseline("numpy", 2.5, {"threads": 2}),
        speedup=speedup,
        speedup_low=speedup - 0.1,
        speedup_high=speedup + 0.1,
        confidence=0.99,
        provenance=PROVENANCE,
        resources=Resources(registers=16),
        vendor_samples=VENDOR_SAMPLES,
    )


def assert_waits_for_imports(store: Store, step: Callable[[], object]) -> None:
    """A step waits until the transaction that has the results for itself ends."""
    with ThreadPoolExecutor(1) as pool:
        with store.begin() as session:
            lock_results(session)
            session.connection()  # SQLite has one writer
            waiting = pool.submit(step)
            while store.engine.dialect.name == "postgresql" and not session.scalar(_WAITERS):
                assert not waiting.done(), "it waited for nobody"
                time.sleep(0.01)
            assert not waiting.done()
        waiting.result(20.0)


def remove_problem(session: Session, of: GemmProblem) -> RecordCounts:
    """Take out all results of a problem at once, as :mod:`tuner.store.upkeep.staging` does in steps."""
    winners = imports.remove_served(session, of)
    listed = {job_id for job_id, _ in imports.jobs_of(session, of)}
    return dataclasses.replace(imports.remove_listed(session, of, listed), best=winners)
