"""``replay``: many runs of one sampler on one space, in parallel processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tilewright.schema.codec import decode, encode
from tilewright.schema.config import Config
from tilewright.schema.job import Sampler
from tuner.replay.run import RunResult, RunSpec, run
from tuner.replay.space import RecordedSpace
from tuner.workers.process import WorkerProcess, python

_RUN_TIMEOUT_S = 3600.0
# NOTE: there is a process for each core already. Threads of the BLAS would compete for cores, and their
# spinning would count as time of the sampler.
_ONE_THREAD = ("env", "OPENBLAS_NUM_THREADS=1")


@dataclasses.dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The plan of a replay.

    Attributes:
        sampler: the sampler of the search.
        runs: number of runs, each with a seed derived from ``seed``.
        budget: number of measured trials of a run.
        seed: random seed; the same plan gives the same results.
        initial_configs: configs that each run tries first.
        min_gain_per_s: as in a job; 0 to spend the budget.
    """

    sampler: Sampler
    runs: int = 45
    budget: int = 200
    seed: int = 0
    initial_configs: tuple[Config, ...] = ()
    min_gain_per_s: float = 0.0

    def specs(self) -> list[RunSpec]:
        """The parameters of each run."""
        drawn = np.random.SeedSequence(self.seed).generate_state(self.runs)
        given = (self.initial_configs, self.min_gain_per_s)
        return [RunSpec(self.sampler, self.budget, int(seed), *given) for seed in drawn]


def replay(
    space: RecordedSpace, plan: ReplayPlan, on_result: Callable[[RunResult], None] = lambda _result: None
) -> list[RunResult]:
    """Run a plan in this process, one run after the other; ``on_result`` is called after each."""
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
    """The results of a plan on the space of a file, in the order of the runs, by ``processes`` processes.

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
            reply = worker.call({"spec": encode(spec)}, timeout_s=_RUN_TIMEOUT_S)
        finally:
            free.put(worker)
        return decode(RunResult, reply.header["result"])

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
