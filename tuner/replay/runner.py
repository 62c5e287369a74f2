"""``replay``: one sampler many times over on one space, in processes side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tilewright.schema.config import Config
from tilewright.schema.job import Sampler
from tuner.replay.run import RunResult, RunSpec, run
from tuner.replay.space import RecordedSpace
from tuner.replay.worker import header_of
from tuner.workers.process import WorkerProcess, python

_RUN_TIMEOUT_S = 3600.0
# NOTE: there is a process for each core already; threads of the BLAS would spin in each other's way, and
# their spinning would count as time of the sampler.
_ONE_THREAD = ("env", "OPENBLAS_NUM_THREADS=1")


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to replay.

    Attributes:
        sampler: how to search.
        runs: how many, each with a seed of its own that follows from ``seed``.
        budget: measured trials of a run.
        seed: the same plan gives the same results.
        initial_configs: configs that each run tries first.
    """

    sampler: Sampler
    runs: int = 45
    budget: int = 200
    seed: int = 0
    initial_configs: tuple[Config, ...] = ()

    def specs(self) -> list[RunSpec]:
        """One a run."""
        drawn = np.random.SeedSequence(self.seed).generate_state(self.runs)
        return [RunSpec(self.sampler, self.budget, int(seed), self.initial_configs) for seed in drawn]


def replay(
    space: RecordedSpace, plan: ReplayPlan, on_result: Callable[[RunResult], None] = lambda _result: None
) -> list[RunResult]:
    """Run a plan in this process, one run after the other; ``on_result`` hears of each."""
    results = []
    for spec in plan.specs():
        results.append(run(space, spec))
        on_result(results[-1])
    return results


def replay_file(
    path: Path,
    plan: ReplayPlan,
    processes: int,
    on_result: Callable[[RunResult], None] = lambda _result: None,
) -> list[RunResult]:
    """Run a plan on the space of a file in ``processes`` processes; results in the order of the runs.

    Raises:
        WorkerError: a process died.
    """
    command = [*_ONE_THREAD, *python("-m", "tuner.replay.worker", "--space", str(path))]
    workers = [WorkerProcess(command) for _ in range(processes)]
    free: SimpleQueue[WorkerProcess] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(spec: RunSpec) -> RunResult:
        worker = free.get()
        try:
            reply = worker.call(header_of(spec), timeout_s=_RUN_TIMEOUT_S)
        finally:
            free.put(worker)
        fields = {field.name: reply.header[field.name] for field in dataclasses.fields(RunResult)}
        return RunResult.from_dict(fields)

    try:
        return list(_reported(one, plan.specs(), processes, on_result))
    finally:
        for worker in workers:
            worker.close()


def _reported(
    one: Callable[[RunSpec], RunResult],
    specs: Sequence[RunSpec],
    threads: int,
    on_result: Callable[[RunResult], None],
) -> Iterator[RunResult]:
    with ThreadPoolExecutor(threads) as pool:
        for result in pool.map(one, specs):
            on_result(result)
            yield result
