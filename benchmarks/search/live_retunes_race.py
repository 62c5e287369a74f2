"""The race that tells the true regret: winners of live re-tunes and the best of a recording, interleaved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from benchmarks.search.live_retunes_job import Retune
from benchmarks.search.live_retunes_report import Regret, figures, regrets
from tilewright.artifact import Artifact
from tilewright.schema.config import Config
from tilewright.schema.trial import Outcome
from tuner.measure.race import RaceRules, RaceSamples
from tuner.measure.stats import median
from tuner.replay.space import RecordedSpace, SpaceError
from tuner.workers.bench import Bench
from tuner.workers.builder import Builder

_TIMEOUT_S = 600.0  # of one call of the device's process: a trial, or a second's slice of the race


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """A config of the recording, built again, with its recorded time in microseconds."""

    config: Config
    artifact: Artifact
    recorded_us: float


def rebuilt(space: RecordedSpace, count: int, bench: Bench, builder: Builder) -> list[Recorded]:
    """The ``count`` recorded configs of the lowest times, the fastest first, compiled and checked anew.

    Raises:
        SpaceError: one does not compile, run or give the right result any more.
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    best = space.best(count)
    compiling = [builder.submit(space.family, config, space.problem, bench.spec) for config in best]
    found = []
    for config, future in zip(best, compiling, strict=True):
        compiled = future.result()
        outcome, message = compiled.outcome, compiled.message
        if compiled.artifact is not None:
            trial = bench.trial(compiled.artifact, space.problem, None, _TIMEOUT_S)
            outcome, message = trial.outcome, trial.message
        if compiled.artifact is None or outcome is not Outcome.OK:
            raise SpaceError(f"{config} is among the best of {space.name} and is {outcome} now: {message}")
        found.append(Recorded(config, compiled.artifact, float(space.true_us[space.row(config)])))
    return found


def raced(
    bench: Bench, space: RecordedSpace, recorded: Sequence[Recorded], tunes: Sequence[Retune], rounds: int
) -> dict[str, Any]:
    """``race`` and ``figures`` of the report, from one race of all winners, of ``recorded`` and of the vendor
    library; a kernel that several configs compile to races once.

    Raises:
        DeviceUnavailable: there is no vendor library for the problem.
        WorkerDied, WorkerTimeout, LaunchError: a kernel broke the device's process.
    """
    won = [tune.artifact for tune in tunes if tune.artifact]
    kernels = {artifact.digest: artifact for artifact in (*(one.artifact for one in recorded), *won)}
    samples = bench.race(list(kernels.values()), space.problem, RaceRules(rounds, 0), _TIMEOUT_S)
    rows = dict(zip(samples.candidates, samples.samples_us, strict=True))
    vendor_us = rows.pop("vendor")
    found = regrets(rows)
    candidates = [_candidate(digest, found[digest], rows[digest], recorded, tunes) for digest in found]
    return {
        "race": {**_conditions(samples), "vendor_samples_us": _to_ns(vendor_us), "candidates": candidates},
        "figures": figures(tunes, found, recorded[0].artifact.digest),
    }


def _conditions(samples: RaceSamples) -> dict[str, Any]:
    return {
        "method": samples.method,
        "rounds": len(samples.samples_us[0]),
        "mhz": samples.mhz,
        "watts": samples.watts,
        "vendor": samples.vendor_name,
        "vendor_us": median(samples.samples_us[-1]),
    }


def _candidate(
    digest: str,
    regret: Regret,
    samples_us: Sequence[float],
    recorded: Sequence[Recorded],
    tunes: Sequence[Retune],
) -> dict[str, Any]:
    """One line of the race: the configs that compile to the kernel, what was recorded, which seeds it won."""
    known = [one for one in recorded if one.artifact.digest == digest]
    won = [tune for tune in tunes if tune.artifact and tune.artifact.digest == digest]
    configs = dict.fromkeys([str(one.config) for one in known] + [str(one.config) for one in won])
    return {
        "artifact": digest,
        "configs": list(configs),
        "recorded_us": known[0].recorded_us if known else None,
        "won_seeds": [tune.seed for tune in won],
        "median_us": median(samples_us),
        "regret": dataclasses.asdict(regret),
        "samples_us": _to_ns(samples_us),
    }


def _to_ns(samples_us: Sequence[float]) -> list[float]:
    return [round(us, 3) for us in samples_us]
