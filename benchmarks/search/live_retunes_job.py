"""One live re-tune: a whole job on an empty store, searching what a recorded space covers."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from kernels.base.family import Family
from kernels.registry import FAMILIES
from tilewright.artifact import Artifact
from tilewright.errors import DeviceUnavailable, TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import JobProgress, TuneRequest
from tuner.job.tune import tune
from tuner.replay.device import narrowed
from tuner.replay.space import RecordedSpace, SpaceError
from tuner.search.pool import Pool
from tuner.store import entities, jobs
from tuner.store.database import Store
from tuner.store.trials import JobRecorder
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder

_OWNER = "live-retunes"


@dataclasses.dataclass(frozen=True, slots=True)
class Retune:
    """How one went.

    Attributes:
        seed: of its search.
        cold: its compilers were started for it, and nothing was compiled before.
        config, artifact: the winner; None if it failed.
        failure: the reason, empty if it went well.
        measured, failed, valid_configs: measured and failed trials, size of the searched space.
        stopped: why the search ended.
        seconds: ``wall``, its parts ``check``, ``measure``, ``idle`` (the device waits for a compiler),
            ``search``, ``race`` and ``other`` (the store, hand-over between processes); ``gpu`` of check,
            measure and race; ``compile``, added up over compilers that work side by side with the device.
    """

    seed: int
    cold: bool
    config: Config | None
    artifact: Artifact | None
    failure: str
    measured: int
    failed: int
    valid_configs: int
    stopped: str | None
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the kernel by its digest."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "config": self.config and self.config.to_dict(),
            "artifact": self.artifact and self.artifact.digest,
        }


@contextlib.contextmanager
def searching(space: RecordedSpace, device: DeviceSpec) -> Iterator[None]:
    """Have the jobs of this process search exactly the configs of ``space``.

    Beside them a job tries the family's heuristic configs, recorded or not. Jobs name their families, so the
    registry is where one is narrowed.

    Raises:
        SpaceError: the space is not one of this device, or its values give other configs now.
        InvalidProblem: the family has lost a knob or a value.
    """
    recorded = space.device.device_class.id
    if space.family not in FAMILIES:
        raise SpaceError(f"{space.name} is of {space.family}, which is none of {', '.join(FAMILIES)}")
    if device.device_class.id != recorded:
        raise SpaceError(f"{space.name} was recorded on {recorded}, this is {device.device_class.id}")
    whole = FAMILIES[space.family]
    family = narrowed(whole, {knob.name: [str(value) for value in knob.values] for knob in space.knobs})
    pool = Pool.of(family, space.problem, device)
    if not np.array_equal(pool.points, space.points):
        raise SpaceError(
            f"{space.name} holds {len(space)} configs, the same values give {len(pool)} or other ones now:"
            " record it anew"
        )
    # NOTE: narrowing keeps everything of a family but its searched values.
    FAMILIES[space.family] = cast(Family[Any], family)
    try:
        yield
    finally:
        FAMILIES[space.family] = whole


def retune(bench: Bench, builder: Builder, request: TuneRequest, cold: bool) -> Retune:
    """Run a job to its end on a store of its own, so that it learns nothing from others.

    Raises:
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"sqlite:///{folder}/tilewright.db")
        try:
            return _run(store, bench, builder, request, cold)
        finally:
            store.close()


def _run(store: Store, bench: Bench, builder: Builder, request: TuneRequest, cold: bool) -> Retune:
    store.migrate()
    with store.begin() as session:
        job, _ = jobs.submit(session, request, bench.spec)
        jobs.claim(session, bench.spec.device_class.id, _OWNER)
    started, failure, best = time.monotonic(), "", None
    try:
        best = tune(request, job.id, bench, builder, JobRecorder(store, job.id), threading.Event())
        failure = "" if best else "no config compiled, ran and gave the right result"
    except DeviceUnavailable:
        raise
    except TilewrightError as error:
        failure = str(error)
    wall_s = time.monotonic() - started
    with store.read() as session:
        record = jobs.get(session, job.id)
        data = entities.get_artifact(session, best.artifact) if best else None
    assert record is not None
    assert record.progress is not None
    progress = record.progress
    return Retune(
        seed=request.seed,
        cold=cold,
        config=best.config if best else None,
        artifact=Artifact.from_bytes(data) if data else None,
        failure=failure,
        measured=progress.measured,
        failed=progress.failed,
        valid_configs=progress.valid_configs,
        stopped=progress.stopped,
        seconds=_seconds(progress, wall_s),
    )


def _seconds(progress: JobProgress, wall_s: float) -> dict[str, float]:
    parts = {part: getattr(progress, f"{part}_s") for part in ("check", "measure", "idle", "search", "race")}
    gpu_s = parts["check"] + parts["measure"] + parts["race"]
    other_s = wall_s - sum(parts.values())
    seconds = {"wall": wall_s, **parts, "other": other_s, "gpu": gpu_s, "compile": progress.compile_s}
    return {part: round(value, 3) for part, value in seconds.items()}
