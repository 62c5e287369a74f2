"""Requests of tuning jobs and the M of their ladders, their status and their progress."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

from tilewright.errors import InvalidProblem
from tilewright.schema.codec import Bounds, Count, FamilyName, MaxLength, decode, encode, gathered
from tilewright.schema.problem import Extent, GemmProblem


class JobStatus(enum.StrEnum):
    """The status of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the job has ended."""
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class Sampler(enum.StrEnum):
    """The sampler, which chooses configs after the initial ones; it proposes valid configs only, each once.

    Attributes:
        STAGED: first configs far apart, then a model of the measurements; the default.
        TPE: Optuna's tree-structured Parzen estimator.
        CMAES: Optuna's covariance matrix adaptation.
        LOCAL: a neighbour of the best so far, else a new start.
        RANDOM: uniform; used for every sampler if the budget covers the space.
    """

    STAGED = "staged"
    TPE = "tpe"
    CMAES = "cmaes"
    LOCAL = "local"
    RANDOM = "random"


class Level(enum.StrEnum):
    """How much a job spends on its answer.

    Attributes:
        FULL: the budget that was asked for, then races between its fastest kernels; the default.
        QUICK: a few trials and a short race of the fastest kernel with the vendor library. Its result is
            marked ``quick``, and tuned in full once it was served and the device is idle.
    """

    FULL = "full"
    QUICK = "quick"


QUICK_TRIALS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search.

    Attributes:
        families: kernel families to search; empty for all that support the problem except those that never
            won on similar ones.
        max_trials: measured trials (``ok`` and ``pruned``) to spend; of a ladder on its largest M, a
            quarter of them on each other row, but at least the first configs of that row, of which a quick
            job has 8.
        max_seconds: wall-clock bound, 0 for none; the final race comes on top, and a job that is resumed has
            it anew.
        seed: random seed of the search.
        sampler: the sampler.
        min_gain_per_s: the search ends if it gains less, as a fraction of the best time per device second; 0
            for never (:func:`tuner.job.loop.why_gain_ends`).
        level: how much the job spends; a quick one has 16 measured trials at most, 8 on the largest M of a
            ladder.
    """

    families: Annotated[tuple[FamilyName, ...], MaxLength(8)] = ()
    max_trials: Annotated[int, Bounds(1, 10_000)] = 40
    max_seconds: Annotated[float, Bounds(0.0, 86_400.0)] = 0.0
    seed: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    sampler: Sampler = dataclasses.field(
        default=Sampler.STAGED, metadata={"was": "policy", "values_were": {"brute": "random"}}
    )
    min_gain_per_s: Annotated[float, Bounds(0.0, 1.0)] = 0.0
    level: Level = Level.FULL

    @property
    def budget(self) -> int:
        """The number of measured trials that the search may spend."""
        return min(self.max_trials, QUICK_TRIALS) if self.level is Level.QUICK else self.max_trials


MOST_ROWS = 64
ROWS_OF_A_JOB = 4  # rows of a ladder that together have the trials of one problem, besides the largest row


def work_of(rows: int) -> int:
    """How many jobs on one problem have the trials of a job with so many rows, rounded up."""
    return 1 + -(-(rows - 1) // ROWS_OF_A_JOB)


Ladder = Annotated[tuple[Extent, ...], MaxLength(MOST_ROWS)]
_PART = re.compile(r"\s*([0-9]{1,10})(?:\s*\.\.\s*([0-9]{1,10})(?:\s*\+\s*([0-9]{1,10}))?)?\s*")


# NOTE: without slots, so that bodies of the wire can inherit the fields.
@dataclasses.dataclass(frozen=True)
class MRange:
    """Values of M from ``first`` to ``last``, both of them included.

    Attributes:
        first, last: the smallest and the largest M.
        step: the difference between two values; 0 to double from one to the next.
    """

    first: Extent
    last: Extent
    step: Count = 0

    @property
    def rows(self) -> Iterator[int]:
        """The values, the smallest first.

        Raises:
            InvalidProblem: ``first`` is 0, or ``last`` is below it.
        """
        if self.first < 1:
            raise InvalidProblem(f"M must be 1 or more, got {self.first}")
        if self.last < self.first:
            raise InvalidProblem(f"a range of M must go up, got {self.first}..{self.last}; write 1..8192")
        m = self.first
        while m < self.last:
            yield m
            m = m + self.step if self.step else 2 * m
        yield self.last


def each_once(values: Iterable[int]) -> list[int]:
    """Each M once, in the order given.

    Raises:
        InvalidProblem: there are more than 64; a long range is refused without being counted through.
    """
    rows = dict[int, None]()
    for value in values:
        rows[value] = None
        if len(rows) > MOST_ROWS:
            raise InvalidProblem(
                f"a ladder has at most {MOST_ROWS} values of M; give fewer, or a range with a larger step"
            )
    return list(rows)


def ladder_of(values: Iterable[int]) -> tuple[int, ...]:
    """The rows of a ladder: each M once, the smallest first; empty for fewer than two, which are no ladder.

    Raises:
        InvalidProblem: there are more than 64.
    """
    rows = sorted(each_once(values))
    return tuple(rows) if len(rows) > 1 else ()


def parse_rows(text: str) -> list[int]:
    """The values of M in a text, each once: numbers and ranges with commas between them.

    ``1..8192`` doubles from 1 to 8192, ``512..4096+512`` goes up by 512; both ends are included.

    Raises:
        InvalidProblem: it is neither, or has more than 64 values.
    """
    parts = [_PART.fullmatch(part) for part in text.split(",")]
    if not all(parts):
        raise InvalidProblem(
            f"M must be numbers and ranges such as 1..8192 or 512..4096+512, with commas, got {text[:80]!r}"
        )
    ranges = [MRange(int(one[1]), int(one[2] or one[1]), int(one[3] or 0)) for one in parts if one]
    return each_once(itertools.chain.from_iterable(one.rows for one in ranges))


@dataclasses.dataclass(frozen=True)
class TuneRequest(SearchOptions):
    """A request for a job: a problem, and the options of the search for its best config.

    Attributes:
        problem: the problem; of a ladder the one with the largest M.
        ladder: every M of a ladder, the smallest first; empty for the problem alone.

    Raises:
        ValueError: ``ladder`` has one M twice, is not sorted, or does not end with that of the problem.
    """

    problem: GemmProblem
    ladder: Ladder = ()

    def __post_init__(self) -> None:
        if self.ladder and (ladder_of(self.ladder) != self.ladder or self.ladder[-1] != self.problem.m):
            raise ValueError(f"ladder: must go up to the m of its problem, {self.problem.m}")

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the problem, as plain data; without a level where it is full, as earlier releases
        had it, so that their requests are known again."""
        full = self.level is Level.FULL
        found = {name: encode(getattr(self, name)) for name in OPTIONS if name != "level" or not full}
        return found | ({"ladder": list(self.ladder)} if self.ladder else {})

    @property
    def work(self) -> int:
        """How many jobs on one problem have as many trials, rounded up: what quotas count."""
        return work_of(len(self.problems))

    @property
    def problems(self) -> list[GemmProblem]:
        """The problem of each row of a ladder, the smallest M first; else the problem alone."""
        return [dataclasses.replace(self.problem, m=m) for m in self.ladder or (self.problem.m,)]

    @classmethod
    def of(cls, problem: GemmProblem, options: Mapping[str, Any]) -> TuneRequest:
        """The request for a problem with options in plain data; missing options have their defaults.

        Raises:
            ValueError: an option is out of range or of another type.
        """
        families = sorted(set(options.get("families", ())))
        found = decode(SearchOptions, {**options, "families": families})
        return cls(**gathered(cls, found, problem=problem, ladder=tuple(options.get("ladder", ()))))


OPTIONS = tuple(field.name for field in dataclasses.fields(SearchOptions))


@dataclasses.dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job.

    Attributes:
        phase: ``enumerate``, ``search``, ``race`` or ``done``.
        m: the row of a ladder that is at work, and that ``best_us`` is of; None for a job on one problem.
        rows_done: number of rows of a ladder whose race is over.
        measured, planned: number of measured trials, and their limit.
        valid_configs: size of the searched space over the families whose configs were listed so far: none of
            a row of a ladder that tries its first configs alone.
        failed: number of trials that failed.
        best_us, best_config: the best so far; None before the first.
        elapsed_s: seconds since the job (or its resumption) started.
        eta_s: expected seconds to the end; None before the first trial.
        compile_s, check_s, measure_s: seconds of compilation, correctness checks and measurement.
        idle_s: seconds that the device waited for compilations.
        search_s: seconds that the search took to choose configs.
        race_s: seconds of the final races.
        open_s: seconds until the first configs and the vendor library's first choice were known.
        transfer_s: seconds of trials beside check and measurement: loading the kernel, operands, messages.
        store_s: seconds in which trials and progress were written to the database.
        stopped: the reason why the search ended; None while it runs.
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
    open_s: float = 0.0
    transfer_s: float = 0.0
    store_s: float = 0.0
    stopped: str | None = None
    m: int | None = None
    rows_done: int = 0
