"""Exports as an Optuna storage, which optuna-dashboard opens: a study for each job, M and family."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState, create_trial

from tilewright.errors import TilewrightError
from tilewright.schema.codec import KnobValue
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome, Trial
from tuner.store import exchange
from tuner.store.exchange import EndedJob, TrialOfJob
from tuner.store.upkeep.sqlite_file import beside

_STATES = {Outcome.OK: TrialState.COMPLETE, Outcome.PRUNED: TrialState.PRUNED}


def write(lines: Iterable[bytes], path: Path) -> int:
    """Write the jobs of an NDJSON export as studies of a new SQLite file; gives how many studies.

    Raises:
        TilewrightError: the file exists, or cannot be written; then nothing is left of it.
    """
    if path.exists():
        raise TilewrightError(f"{path} exists; choose another name, or remove it")
    jobs: dict[str, EndedJob] = {}
    trials: dict[tuple[str, int | None, str], list[TrialOfJob]] = defaultdict(list)
    for line in lines:
        record = exchange.of_plain(json.loads(line))
        if isinstance(record, EndedJob):
            jobs[record.id] = record
        elif isinstance(record, TrialOfJob):
            trials[record.job, record.trial.m, record.trial.config.family].append(record)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with beside(path) as made, _as_of_sqlite():
        storage = optuna.storages.RDBStorage(f"sqlite:///{made}")
        for (job_id, m, family), found in trials.items():
            problem = jobs[job_id].request.problem
            row = problem if m is None else dataclasses.replace(problem, m=m)
            _write_study(storage, jobs[job_id], row, family, found)
        made.rename(path)
    return len(trials)


@contextlib.contextmanager
def _as_of_sqlite() -> Iterator[None]:
    """Raise the error of SQLite from which one of Optuna's storage came: that one blames the data."""
    try:
        yield
    except StorageInternalError as error:
        raise error.__cause__ or error from None


def _write_study(
    storage: optuna.storages.RDBStorage,
    job: EndedJob,
    problem: GemmProblem,
    family: str,
    found: list[TrialOfJob],
) -> None:
    name = f"{problem} {family} {job.device.device_class.id} {job.id[:16]}"
    study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
    facts = {"unit": "median time, µs", "job": job.id, "device": job.device.name, "status": job.status.value}
    for key, value in facts.items():
        study.set_user_attr(key, value)
    spaces = _spaces([one.trial for one in found])
    study.add_trials(_frozen(one.trial, one.created, spaces) for one in found)


def _spaces(trials: list[Trial]) -> dict[str, BaseDistribution]:
    values: dict[str, set[KnobValue]] = defaultdict(set)
    for trial in trials:
        for name, value in trial.config.knobs:
            values[name].add(value)
    return {
        name: CategoricalDistribution(sorted(found, key=lambda one: (isinstance(one, str), one)))
        for name, found in values.items()
    }


def _frozen(trial: Trial, ended: datetime, spaces: dict[str, BaseDistribution]) -> FrozenTrial:
    state = _STATES.get(trial.outcome, TrialState.FAIL)
    knobs = dict(trial.config.knobs)
    median = trial.timing.median_us if trial.timing else None
    frozen = create_trial(
        state=state,
        value=median if state is TrialState.COMPLETE else None,
        params=knobs,
        distributions={name: spaces[name] for name in knobs},
        user_attrs={"outcome": trial.outcome.value, "message": trial.message[:500], "origin": trial.origin},
        intermediate_values={0: median} if state is TrialState.PRUNED and median else {},
    )
    frozen.datetime_start = frozen.datetime_complete = ended.replace(tzinfo=None)
    return frozen
