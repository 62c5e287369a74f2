"""The true regret of live tuning: a shape tuned many times, the winners raced with the best recorded configs.

    python -m benchmarks.search.live_retunes benchmarks/spaces/SPACE.t4.json.gz --tunes 20 --device cuda:0

Each re-tune is a job as the service runs it (:mod:`benchmarks.common.fresh`), with a seed and an empty
database of its own. It searches the family of the recorded space, as any job of that family does. All share
the device's process and what was compiled before.

Recorded times are of another day, and a job's own figures of other moments. So every kernel that won and the
``--best`` fastest of the recording are then raced together (:mod:`tuner.measure.race`): interleaved, at
sustained clocks. The fastest of that race is the optimum, and the regret of a re-tune is how much slower its
winner was in the same rounds.

Writes one JSON file, after every re-tune. Those that are done after ``--max-seconds`` are raced.
``python -m benchmarks.search.report`` puts the figures into benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import itertools
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import pages
from benchmarks.common.fresh import DEVICE_PHASES, FreshTuner
from benchmarks.common.results import RESULTS, device_facts, now, write_json
from kernels.registry import FAMILIES
from tilewright import __version__
from tilewright.artifact import Artifact
from tilewright.errors import TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.job import TuneRequest
from tuner.measure.race import RaceRules
from tuner.measure.stats import CONFIDENCE, median, rounds_needed, speed_ratio
from tuner.replay.formats import read_space
from tuner.replay.space import RecordedSpace, SpaceError
from tuner.workers.bench import Bench, list_devices

_TIMEOUT_S = 600.0  # of one call of the device's process: a trial, or a second's slice of the race
_LEAST = {"tunes": 1, "budget": 1, "best": 1, "rounds": rounds_needed(CONFIDENCE)}
_HEADERS = (
    "space", "re-tunes x trials", "regret: median", "p95", "most", "tied with the optimum",
    "different winners", "flip rate", "rank of the best recorded", "wall clock", "device",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Retune:
    """The result of one re-tune.

    Attributes:
        seed: of its search.
        config, artifact: the winner; None if it failed.
        failure: the reason, empty if it went well.
        trials: measured and failed ones.
        seconds: ``wall``, and ``gpu`` of checks, measurements and races.
    """

    seed: int
    config: Config | None
    artifact: Artifact | None
    failure: str
    trials: int
    seconds: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the kernel by its digest."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {
            "config": self.config and self.config.to_dict(),
            "artifact": self.artifact and self.artifact.digest,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Regret:
    """How much slower a kernel is than the fastest of its race, as a share: 0.01 is 1 %.

    Attributes:
        value: the median over the rounds of its time over that of the fastest, minus 1; just below 0 if
            it was faster in more rounds although its own median is higher.
        low, high: 99 % interval of that median.
    """

    value: float
    low: float
    high: float

    @property
    def tied(self) -> bool:
        """Whether the race could not distinguish the kernel from the fastest."""
        return self.low <= 0.0


def check_device(space: RecordedSpace, device: DeviceSpec) -> None:
    """Refuse a space whose best configs say nothing about this device.

    Raises:
        SpaceError: it is of another family or device.
    """
    if space.family not in FAMILIES:
        raise SpaceError(f"{space.name} is of {space.family}, which is none of {', '.join(FAMILIES)}")
    recorded, here = space.device.device_class.id, device.device_class.id
    if here != recorded:
        raise SpaceError(f"{space.name} was recorded on {recorded}, this is {here}; use a space of this one")


def retune(tuner: FreshTuner, request: TuneRequest) -> Retune:
    """Run a job to its end on an empty database, so that it learns nothing from others.

    Raises:
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    tuner.forget()
    tuned = tuner.tune(request)
    best = tuned.winners.get(request.problem.m)
    return Retune(
        seed=request.seed,
        config=best.config if best else None,
        artifact=tuner.kernel_of(best) if best else None,
        failure=tuned.failure,
        trials=tuned.trials,
        seconds={
            "wall": tuned.seconds,
            "gpu": sum(tuned.phases_s.get(name, 0.0) for name in DEVICE_PHASES),
        },
    )


def rebuilt(space: RecordedSpace, count: int, tuner: FreshTuner) -> dict[Config, Artifact]:
    """The ``count`` recorded configs of the lowest times that are valid today, compiled and checked anew.

    Raises:
        SpaceError: none is valid any more, or one does not compile, run or give the right result.
        DeviceUnavailable: the compiler or the device's libraries are missing.
    """
    family, device = FAMILIES[space.family], tuner.bench.spec
    known = (family.completed(config) for config in space.best(len(space)))
    valid = (config for config in known if not family.why_invalid(config, space.problem, device))
    best = list(itertools.islice(valid, count))
    found = tuner.built(best, space.problem)
    if not best:
        raise SpaceError(f"no config of {space.name} is valid any more: record it anew")
    for config in best:
        if config not in found:
            raise SpaceError(
                f"{config} is among the best of {space.name} and does not run right now: record it anew"
            )
    return found


def raced(
    bench: Bench,
    space: RecordedSpace,
    recorded: Mapping[Config, Artifact],
    tunes: Sequence[Retune],
    rounds: int,
) -> dict[str, Any]:
    """``race`` and ``figures`` of the report, from one race of all winners, of ``recorded`` and of the vendor
    library; a kernel that several configs compile to races once.

    Raises:
        DeviceUnavailable: there is no vendor library for the problem.
        WorkerDied, WorkerTimeout, LaunchError: a kernel broke the device's process.
    """
    configs = [*recorded.items(), *((one.config, one.artifact) for one in tunes if one.artifact)]
    kernels = {artifact.digest: artifact for _, artifact in configs}
    samples = bench.race(list(kernels.values()), space.problem, RaceRules(rounds, 0), _TIMEOUT_S)
    rows = dict(zip(samples.candidates, samples.samples_us, strict=True))
    vendor_us = rows.pop("vendor")
    found = regrets(rows, samples.periods)
    candidates = [
        {
            "artifact": digest,
            "configs": list(dict.fromkeys(str(one) for one, built in configs if built.digest == digest)),
            "won_seeds": [one.seed for one in tunes if one.artifact and one.artifact.digest == digest],
            "median_us": median(rows[digest]),
            "regret": dataclasses.asdict(regret),
            "samples_us": [round(us, 3) for us in rows[digest]],
        }
        for digest, regret in found.items()
    ]
    race = {
        "method": samples.method,
        "rounds": len(samples.samples_us[0]),
        "mhz": samples.mhz,
        "watts": samples.watts,
        "vendor": samples.vendor_name,
        "vendor_us": median(vendor_us),
        "candidates": candidates,
    }
    best_recorded = next(iter(recorded.values())).digest
    return {"race": race, "figures": figures(tunes, found, best_recorded)}


def regrets(samples_us: Mapping[str, Sequence[float]], periods: bool = False) -> dict[str, Regret]:
    """The regret of each candidate of a race, the one with the lowest median first: that one is the optimum.
    At the power limit samples are means of whole ``periods``.

    The lowest of several noisy medians is flattered, so regrets err on the high side.

    Raises:
        ValueError: there are fewer than 8 rounds of short samples.
    """
    ranked = sorted(samples_us, key=lambda name: median(samples_us[name]))
    fastest = samples_us[ranked[0]]
    ratios = {name: speed_ratio(samples_us[name], fastest, periods) for name in ranked}
    return {name: Regret(one.value - 1, one.low - 1, one.high - 1) for name, one in ratios.items()}


def flip_rate(winners: Sequence[str]) -> float | None:
    """The share of pairs of re-tunes that ended with different kernels; None for fewer than two."""
    pairs = math.comb(len(winners), 2)
    same = sum(math.comb(count, 2) for count in collections.Counter(winners).values())
    return 1 - same / pairs if pairs else None


def figures(tunes: Sequence[Retune], found: Mapping[str, Regret], best_recorded: str) -> dict[str, Any]:
    """The figures of ``tunes``, one of them successful at least.

    ``found`` holds the regrets of a race, the optimum first; ``best_recorded`` is the kernel with the lowest
    recorded time.
    """
    winners = [tune.artifact.digest for tune in tunes if tune.artifact]
    shares = [found[digest].value for digest in winners]
    return {
        "tunes": len(tunes),
        "failed": len(tunes) - len(winners),
        "regret_median": median(shares),
        "regret_p95": float(np.quantile(shares, 0.95)),
        "regret_most": max(shares),
        "in_tie_set": sum(found[digest].tied for digest in winners),
        "different_winners": len(set(winners)),
        "flip_rate": flip_rate(winners),
        "best_recorded_rank": 1 + list(found).index(best_recorded),
    }


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """Regret and seconds of reports with figures, in Markdown."""
    return pages.table(_HEADERS, [_row(report) for report in reports]) + "\n"


def _row(report: Mapping[str, Any]) -> tuple[str, ...]:
    found, seconds = report["figures"], [one["seconds"] for one in report["tunes"]]
    failed = f", {found['failed']} failed" if found["failed"] else ""
    return (
        report["space"]["name"],
        f"{found['tunes']} x {report['plan']['budget']}{failed}",
        *(f"{100 * found[name]:.2f} %" for name in ("regret_median", "regret_p95", "regret_most")),
        f"{found['in_tie_set']} of {found['tunes'] - found['failed']}",
        str(found["different_winners"]),
        "" if found["flip_rate"] is None else f"{found['flip_rate']:.2f}",
        f"{found['best_recorded_rank']} of {len(report['race']['candidates'])}",
        *(_range([one[part] for one in seconds]) for part in ("wall", "gpu")),
    )


def _range(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f} ({min(seconds):.1f} .. {max(seconds):.1f})"


def main(words: Sequence[str]) -> int:
    """Command line; gives the exit code.

    Raises:
        SpaceError: the space cannot be read, is not one of this device, or not of these sources.
        DeviceUnavailable: the device, its libraries or the compiler are missing.
    """
    plan = _arguments(words)
    space = read_space(plan.space)
    out = plan.out or RESULTS / f"live-retunes-{space.name}.json"
    device = plan.device or list_devices()[0]
    with FreshTuner(device, plan.compile_processes) as tuner:
        check_device(space, tuner.bench.spec)
        report = _head(space, plan, words) | device_facts(tuner.bench.spec, tuner.bench.driver)
        recorded = rebuilt(space, plan.best, tuner)
        write_json(out, report)
        tunes: list[Retune] = []
        ends = time.monotonic() + plan.max_seconds if plan.max_seconds else math.inf
        for seed in range(plan.seed, plan.seed + plan.tunes):
            if time.monotonic() >= ends:
                break
            request = TuneRequest(space.problem, families=(space.family,), max_trials=plan.budget, seed=seed)
            tunes.append(retune(tuner, request))
            report["tunes"] = [one.to_dict() for one in tunes]
            write_json(out, report)
            print(f"{seed}: {tunes[-1].config or tunes[-1].failure}", file=sys.stderr, flush=True)  # noqa: T201
        if not any(one.artifact for one in tunes):
            print(f"no re-tune found a winner; {out} says why", file=sys.stderr)  # noqa: T201
            return 1
        report |= raced(tuner.bench, space, recorded, tunes, plan.rounds)
    write_json(out, report)
    print(table([report]))  # noqa: T201
    return 0


def _head(space: RecordedSpace, plan: argparse.Namespace, words: Sequence[str]) -> dict[str, Any]:
    """The entries of a report that are known before the first re-tune."""
    return {
        "date": now(),
        "command": shlex.join(["python", "-m", "benchmarks.search.live_retunes", *words]),
        "package": __version__,
        "space": {
            "name": space.name,
            "family": space.family,
            "configs": len(space),
            "sha256": hashlib.sha256(plan.space.read_bytes()).hexdigest(),
            "optimum_us": space.optimum_us,
            "provenance": dict(space.provenance),
        },
        "problem": space.problem.to_dict(),
        "plan": {name: getattr(plan, name) for name in (*_LEAST, "seed", "max_seconds")},
        "tunes": [],
    }


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Tunes the problem of a recorded space many times over, live."
    )
    parser.add_argument("space", type=Path, help="the recorded space")
    parser.add_argument("--tunes", type=int, default=20, help="how many re-tunes")
    parser.add_argument("--budget", type=int, default=100, help="measured trials of each")
    parser.add_argument("--best", type=int, default=8, help="recorded configs in the race")
    parser.add_argument("--rounds", type=int, default=64, help="of short samples, 8 or more")
    parser.add_argument("--seed", type=int, default=0, help="of the first re-tune; the next has the next")
    parser.add_argument("--max-seconds", type=float, default=0.0, help="then none starts; 0: no limit")
    parser.add_argument("--device", help="cuda:0, host ...; the first here by default")
    parser.add_argument("--compile-processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="benchmarks/results/live-retunes-SPACE.json by default")
    arguments = parser.parse_args(words)
    for name, least in _LEAST.items():
        if getattr(arguments, name) < least:
            parser.error(f"--{name} must be {least} or more, got {getattr(arguments, name)}")
    return arguments


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TilewrightError as failed:
        sys.exit(f"error: {failed}")
