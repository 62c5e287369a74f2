"""What a tuning job is asked for, and where it stands."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Annotated, Any

from tilewright.schema.codec import Bounds, FamilyName, MaxLength, decode, encode, gathered
from tilewright.schema.problem import GemmProblem


class JobStatus(enum.StrEnum):
    """Life of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Nothing follows this status."""
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Sampler(enum.StrEnum):
    """Which config is tried after the initial ones; no sampler proposes an invalid config, or one twice.

    Attributes:
        STAGED: a spread of first configs, then a model of what was measured; the default.
        TPE: Optuna's tree-structured Parzen estimator.
        CMAES: Optuna's covariance matrix adaptation.
        LOCAL: the best neighbour of the best so far, else another start.
        RANDOM: uniformly; what every sampler becomes if the budget covers the space.
    """

    STAGED = "staged"
    TPE = "tpe"
    CMAES = "cmaes"
    LOCAL = "local"
    RANDOM = "random"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search.

    Attributes:
        families: kernel families to search; empty for all that support the problem.
        max_trials: measured trials (``ok`` and ``pruned``) to spend.
        max_seconds: wall-clock bound, 0 for none; the final race comes on top.
        seed: of every random choice of the search.
        sampler: how to search.
        min_gain_per_s: the search ends where it gains less, as a share of the best time per second that
            the device is at work; 0 for never (:func:`tuner.job.loop.gain_per_s`).
    """

    families: Annotated[tuple[FamilyName, ...], MaxLength(8)] = ()
    max_trials: Annotated[int, Bounds(1, 10_000)] = 100
    max_seconds: Annotated[float, Bounds(0.0, 86_400.0)] = 0.0
    seed: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    sampler: Sampler = dataclasses.field(
        default=Sampler.STAGED, metadata={"was": "policy", "values_were": {"brute": "random"}}
    )
    min_gain_per_s: Annotated[float, Bounds(0.0, 1.0)] = 0.0


@dataclasses.dataclass(frozen=True)
class TuneRequest(SearchOptions):
    """A job: a problem, and how to search for its best config."""

    problem: GemmProblem

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the problem, as plain data."""
        return {name: encode(getattr(self, name)) for name in OPTIONS}

    @classmethod
    def of(cls, problem: GemmProblem, options: Mapping[str, Any]) -> TuneRequest:
        """The request with these options as plain data; those that are missing have their defaults.

        Raises:
            ValueError: an option is out of range or of another type.
        """
        families = sorted(set(options.get("families", ())))
        found = decode(SearchOptions, {**options, "families": families})
        return cls(**gathered(cls, found, problem=problem))


OPTIONS = tuple(field.name for field in dataclasses.fields(SearchOptions))


@dataclasses.dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a job stands.

    Attributes:
        phase: ``enumerate``, ``search``, ``race`` or ``done``.
        measured, planned: trials spent and granted.
        valid_configs: size of the searched space, over all families.
        failed: trials that ended in any other way.
        best_us, best_config: the best so far; None before the first.
        elapsed_s: seconds since the job (or its resumption) started.
        eta_s: expected seconds to the end; None before the first trial.
        compile_s, check_s, measure_s: where the seconds went.
        idle_s: seconds the device waited for a compile.
        search_s: seconds that choosing configs took.
        race_s: seconds of the final races.
        stopped: why the search ended; None while it runs.
    """

    phase: str
    measured: int
    planned: int
    valid_configs: int = 0
    failed: int = 0
    best_us: float | None = None
    best_config: str | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    compile_s: float = 0.0
    check_s: float = 0.0
    measure_s: float = 0.0
    idle_s: float = 0.0
    search_s: float = 0.0
    race_s: float = 0.0
    stopped: str | None = None
