"""Record a random part of the live pools of some families, quickly, for 'tilewright replay'.

    python -m benchmarks.lab.record_random 4096x4096x4096 --dtype float16 --family wgmma_ws=8000 \\
        --family mma_sync=800 --device cuda:0 --processes 15 --stop-after 400 --out benchmarks/spaces

One T4 file a family. Every family records its heuristic configs, then configs drawn at random from its pool;
the same seed draws the same ones, more of them for a larger number. The families share the time by their
numbers. The fastest of each are measured again with more samples, because the fastest of thousands of short
measurements looks faster than it is.

What was measured is in a journal beside each file. The same command goes on where the journals stand; after
a kill too. A binary is compiled once for all problems that it serves: compiled ones are kept in
``TILEWRIGHT_CACHE_DIR``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.results import now
from benchmarks.lab.race_configs import problem_of
from kernels.base.family import ConfigSpace
from kernels.registry import FAMILIES
from service.settings import Settings
from tilewright.artifact import Artifact
from tilewright.errors import InvalidProblem
from tilewright.schema.codec import decode
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, TrialResult
from tuner.measure.stats import median
from tuner.replay.formats import write_space
from tuner.replay.record import Counts, Journal, Recording, RecordPlan, head, space_of
from tuner.replay.space import SpaceError
from tuner.search.pool import Pool
from tuner.workers.builder import Builder
from tuner.workers.process import WorkerDied, WorkerProcess, WorkerTimeout, python

METHOD = "short-v1"
SAMPLES, AGAIN_SAMPLES, AGAIN = 5, 15, 100
SLOW = 2.0
_MOST_FINISH_S, _FINISH_SHARE = 30.0, 0.2  # of the time, to measure the fastest again and to write
_SUFFIX = ".t4.json.gz"
_TIMEOUT_S = 30.0
_TELL_S = 10.0


class ShortBench:
    """A device behind :mod:`benchmarks.lab.record_worker`.

    Attributes:
        spec, driver: those of the device.
    """

    def __init__(self, device: str) -> None:
        self._process = WorkerProcess(python("-m", "benchmarks.lab.record_worker", "--device", device))
        hello = self._process.greeting()
        self.spec = DeviceSpec.from_dict(hello["spec"])
        self.driver = str(hello["driver"])

    def trial(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        incumbent_us: float | None,
        timeout_s: float,
        fewest_samples: int,
    ) -> TrialResult:
        """The result of a check and a short measurement."""
        header = {"problem": problem.to_dict(), "incumbent_us": incumbent_us, "samples": fewest_samples}
        try:
            reply = self._process.call(header, [artifact.to_bytes()], timeout_s=timeout_s)
        except WorkerTimeout as error:
            return TrialResult(outcome=Outcome.TIMEOUT, message=str(error))
        except WorkerDied as error:
            return TrialResult(outcome=Outcome.LAUNCH_ERROR, message=str(error))
        return decode(TrialResult, reply.header["result"])

    def close(self) -> None:
        """End the process."""
        self._process.close()


def drawn(
    family: ConfigSpace[Any], problem: GemmProblem, spec: DeviceSpec, count: int, seed: int
) -> tuple[list[Config], int]:
    """The heuristic configs and random ones of the pool, ``count`` in all, and the size of the pool.

    Raises:
        InvalidProblem: no config is valid.
    """
    pool = Pool.of(family, problem, spec)
    if not len(pool):
        reason = family.why_unsupported(problem, spec)
        raise InvalidProblem(reason or f"no config of {family.name} is valid for {problem}; use another")
    rows = np.random.default_rng(seed).permutation(len(pool))
    configs = dict.fromkeys(
        one
        for one in family.heuristic_configs(problem, spec)
        if all(one[knob.name] in knob.values for knob in family.knobs)
    )
    for row in rows:
        if len(configs) >= count:
            break
        configs.setdefault(pool.config(int(row)))
    return list(configs)[:count], len(pool)


def measure_again(
    plan: RecordPlan, bench: ShortBench, builder: Builder, journal: Journal, deadline: float
) -> int:
    """Replace the samples of the fastest configs by more; the number of configs that were done by then."""
    times = {config: median(one.samples_us) for config, one in journal.entries.items() if one.samples_us}
    best = sorted(times, key=times.__getitem__)[:AGAIN]
    todo = [one for one in best if len(journal.entries[one].samples_us) < AGAIN_SAMPLES]
    waiting = [(one, builder.submit(one.family, one, plan.problem, bench.spec)) for one in todo]
    done = 0
    for config, future in waiting:
        if time.monotonic() > deadline:
            future.cancel()
            continue
        artifact = future.result().artifact
        result = artifact and bench.trial(artifact, plan.problem, None, _TIMEOUT_S, AGAIN_SAMPLES)
        if result and result.timing:
            entry = dataclasses.replace(journal.entries[config], samples_us=result.timing.samples_us)
            journal.add(config, entry)
            done += 1
    return done


def record_family(
    plan: RecordPlan, count: int, seed: int, bench: ShortBench, builder: Builder, processes: int, path: Path
) -> Counts:
    """Record configs of one family until ``plan.max_seconds`` are over, then write the file."""
    ends = time.monotonic() + plan.max_seconds
    configs, size = drawn(plan.family, plan.problem, bench.spec, count, seed)
    left_s = ends - time.monotonic()
    finish_s = min(_MOST_FINISH_S, _FINISH_SHARE * left_s)
    family = plan.family
    plan = dataclasses.replace(plan, max_seconds=max(1.0, left_s - finish_s))
    told_head = {**head(plan, bench), "seed": seed}
    journal = Journal(path.with_name(path.name + ".journal"), told_head, resume=True)
    recording = Recording(plan, bench, builder, journal, configs)
    recording.run(processes, _teller(family.name))
    again = measure_again(plan, bench, builder, journal, ends - 5.0)
    name = path.name.removesuffix(_SUFFIX)
    space = space_of(journal, name, family.knobs, plan.problem, bench.spec)
    told = {
        "date": now(),
        "planned": size,
        "drawn": count,
        "seed": seed,
        "fewest_samples": SAMPLES,
        "measured_again": again,
        "slow": plan.slow,
    }
    write_space(dataclasses.replace(space, provenance={**journal.provenance, **told}), path)
    return recording.counts


def _teller(name: str) -> Any:
    last = [0.0]

    def tell(counts: Counts) -> None:
        if time.monotonic() - last[0] > _TELL_S:
            last[0] = time.monotonic()
            best = f"{counts.best_us:.2f} us" if counts.best_us else "none"
            text = f"{name}: {counts.done} of {counts.planned}, {counts.failed} failed, best {best}"
            _say(f"{text}, device idle {counts.idle_s:.0f} s")

    return tell


def record_all(
    shares: Mapping[str, int], problem: GemmProblem, arguments: argparse.Namespace, started: float
) -> None:
    """Record every family in the time that is left."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = ShortBench(arguments.device)
    settings = Settings()
    builder = Builder(arguments.processes, settings.cache_dir, cache_bytes=settings.cache_bytes)
    with contextlib.closing(bench), contextlib.closing(builder):
        left = dict(shares)
        for name, count in shares.items():
            seconds = arguments.stop_after - (time.monotonic() - started)
            share = seconds * left.pop(name) / (count + sum(left.values()))
            plan = RecordPlan(FAMILIES[name], problem, SAMPLES, SLOW, share, METHOD)
            path = arguments.out / f"{name}-{file_name(problem, bench.spec)}{_SUFFIX}"
            try:
                counts = record_family(plan, count, arguments.seed, bench, builder, arguments.processes, path)
            except (InvalidProblem, SpaceError) as error:
                _say(f"{name}: {error}")
                continue
            _say(f"{path.name}: {counts.done} of {counts.planned}, {counts.failed} failed")


def file_name(problem: GemmProblem, spec: DeviceSpec) -> str:
    """Shape, element type and device, as in names of recorded spaces."""
    model = re.search(r"\b[A-Z]+\d+\b", spec.name) if spec.kind == "cuda" else None
    where = model[0].lower() if model else spec.kind
    return f"{problem.m}x{problem.n}x{problem.k}-{problem.dtype.value}-{where}"


def families_of(texts: Sequence[str]) -> dict[str, int]:
    """The number of configs by family, from ``NAME=COUNT``.

    Raises:
        InvalidProblem: there is no such family, or it is given no number.
    """
    found = {}
    for text in texts:
        name, _, count = text.partition("=")
        if name not in FAMILIES or not count.isdecimal() or not int(count):
            raise InvalidProblem(f"use FAMILY=COUNT with a family of {', '.join(FAMILIES)}, got {text!r}")
        found[name] = int(count)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description="Records a random part of the pools of some families.")
    parser.add_argument("shape", help="MxNxK or MxNxK-layout")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--family", action="append", required=True, help="NAME=COUNT; repeatable")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--seed", type=int, default=24)
    parser.add_argument("--stop-after", type=float, default=400.0, help="seconds of all, files written")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files and their journals")
    given = parser.parse_args(arguments)
    try:
        record_all(families_of(given.family), problem_of(given.shape, given.dtype), given, started)
    except InvalidProblem as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
