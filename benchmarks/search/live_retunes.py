"""The true regret of live tuning: one shape tuned many times, the winners raced with the recorded optimum.

    python -m benchmarks.search.live_retunes benchmarks/spaces/SPACE.t4.json.gz --tunes 20 --device cuda:0

Each re-tune is a job as the service runs it (:func:`tuner.job.tune.tune`), with a seed and an empty store of
its own. It searches the configs of the recorded space, whose optimum is known, and tries the family's own
heuristic configs like any job, recorded or not. The first ``--cold`` re-tunes each start their compilers with
an empty cache: their wall clock is that of a first job. The others share the compilers and what was compiled
before, in ``--cache`` where that is given. The device's process serves all, with the reference results of its
checks.

Recorded times are of another day, and a job's own figures of other moments. So every kernel that won and the
``--best`` fastest of the recording are then raced together (:mod:`tuner.measure.race`): interleaved, at
sustained
clocks. The fastest of that race is the optimum, and the regret of a re-tune is how much slower its winner was
in the same rounds.

Writes one JSON file, after every re-tune. Ctrl-C and ``--max-seconds`` end the re-tunes, and those that are
done are raced; a second Ctrl-C leaves them without a race. ``python -m benchmarks.search.report`` puts the
figures into benchmarks/results/search.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.results import RESULTS, device_facts, now, write_json
from benchmarks.search.live_retunes_job import Retune, retune, searching
from benchmarks.search.live_retunes_race import raced, rebuilt
from benchmarks.search.live_retunes_report import line, tables
from tilewright import __version__
from tilewright.errors import TilewrightError
from tilewright.schema.job import TuneRequest
from tuner.measure.stats import CONFIDENCE, rounds_needed
from tuner.replay.formats import read_space
from tuner.replay.space import RecordedSpace
from tuner.workers.bench import Bench, list_devices
from tuner.workers.builder import Builder

_LEAST = {"tunes": 1, "budget": 1, "best": 1, "rounds": rounds_needed(CONFIDENCE)}
Keep = Callable[[dict[str, Any]], None]
Tell = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        tunes: how many re-tunes; the first ``cold`` ones compile everything anew.
        budget: measured trials of each.
        best: fastest recorded configs that take part in the race.
        rounds: of the race, 8 or more.
        seed: of the first re-tune; each following one has the next.
        max_seconds: no re-tune starts after so many; 0 for no limit.
    """

    tunes: int = 20
    budget: int = 100
    cold: int = 2
    best: int = 8
    rounds: int = 64
    seed: int = 0
    max_seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """What it runs with: a device, and compilers that share a folder of compiled kernels."""

    device: str
    compile_processes: int
    cache: Path


def run(space: RecordedSpace, plan: Plan, tools: Tools, keep: Keep, tell: Tell) -> bool:
    """Re-tune, then race; ``keep`` receives what is new in the report, ``tell`` what people may want to read.

    Returns:
        Whether the report has its figures: a re-tune found a winner.

    Raises:
        SpaceError: the space is not one of this device, or of these sources.
        DeviceUnavailable: the device, its libraries or the compiler are missing.
    """
    with (
        contextlib.closing(Bench(tools.device)) as bench,
        contextlib.closing(Builder(tools.compile_processes, tools.cache)) as builder,
        searching(space, bench.spec),
    ):
        recorded = rebuilt(space, plan.best, bench, builder)
        tunes: list[Retune] = []
        facts = device_facts(bench.spec, bench.driver)
        keep({**facts, "compile_processes": tools.compile_processes, "tunes": []})
        try:
            for one in _retunes(space, plan, tools, bench, builder):
                tunes.append(one)
                keep({"tunes": [tune.to_dict() for tune in tunes]})
                tell(line(one.to_dict()))
        except KeyboardInterrupt:
            tell("interrupted; what is done is raced now")
        if not any(tune.artifact for tune in tunes):
            return False
        keep(raced(bench, space, recorded, tunes, plan.rounds))
        return True


def _retunes(
    space: RecordedSpace, plan: Plan, tools: Tools, bench: Bench, builder: Builder
) -> Iterator[Retune]:
    ends = time.monotonic() + plan.max_seconds if plan.max_seconds else math.inf
    for number in range(plan.tunes):
        if time.monotonic() >= ends:
            return
        request = TuneRequest(
            space.problem, families=(space.family,), max_trials=plan.budget, seed=plan.seed + number
        )
        yield _cold(bench, tools, request) if number < plan.cold else retune(bench, builder, request, False)


def _cold(bench: Bench, tools: Tools, request: TuneRequest) -> Retune:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Builder(tools.compile_processes, Path(folder))) as builder,
    ):
        return retune(bench, builder, request, True)


def _head(path: Path, space: RecordedSpace, plan: Plan, words: Sequence[str]) -> dict[str, Any]:
    """What a report begins with."""
    return {
        "date": now(),
        "command": shlex.join(["python", "-m", "benchmarks.search.live_retunes", *words]),
        "package": __version__,
        "space": {
            "name": space.name,
            "family": space.family,
            "configs": len(space),
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "optimum_us": space.optimum_us,
            "provenance": dict(space.provenance),
        },
        "problem": space.problem.to_dict(),
        "plan": dataclasses.asdict(plan),
    }


def main(words: Sequence[str]) -> int:
    """Command line; gives the exit code.

    Raises:
        TilewrightError: as :func:`run`, and where the space cannot be read.
    """
    arguments = _arguments(words)
    space = read_space(arguments.space)
    plan = Plan(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Plan)})
    out = arguments.out or RESULTS / f"live-retunes-{space.name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    report = _head(arguments.space, space, plan, words)

    def keep(known: dict[str, Any]) -> None:
        report.update(known)
        write_json(out, report)

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory() as folder:
        tools = Tools(
            arguments.device or list_devices()[0],
            arguments.compile_processes,
            arguments.cache or Path(folder),
        )
        found = run(space, plan, tools, keep, tell)
    print(tables([report]) if found else f"no re-tune found a winner; {out} says why")  # noqa: T201
    return 0 if found else 1


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    plan = Plan()
    parser = argparse.ArgumentParser(
        description="Tunes the problem of a recorded space many times over, live."
    )
    parser.add_argument("space", type=Path, help="the recorded space")
    parser.add_argument("--tunes", type=int, default=plan.tunes, help="how many re-tunes")
    parser.add_argument("--budget", type=int, default=plan.budget, help="measured trials of each")
    parser.add_argument("--cold", type=int, default=plan.cold, help="so many compile everything anew")
    parser.add_argument("--best", type=int, default=plan.best, help="recorded configs in the race")
    parser.add_argument("--rounds", type=int, default=plan.rounds, help="of the race, 8 or more")
    parser.add_argument("--seed", type=int, default=plan.seed, help="of the first re-tune")
    parser.add_argument(
        "--max-seconds", type=float, default=plan.max_seconds, help="then none starts; 0: no limit"
    )
    parser.add_argument("--device", help="cuda:0, host ...; the first here by default")
    parser.add_argument("--compile-processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cache", type=Path, help="compiled kernels of the warm re-tunes; kept there")
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
