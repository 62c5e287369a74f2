"""``RecordedSpace``: every valid config of one problem on one device, with its measured samples."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.base.knobs import Knob
from kernels.registry import FAMILIES
from tilewright.errors import TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.measure.stats import median
from tuner.search.pool import Pool

_FAILURES = frozenset(Outcome) - {Outcome.OK, Outcome.PRUNED}


class SpaceError(TilewrightError):
    """A file holds no recorded space; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """The recorded result of a config.

    Attributes:
        samples_us: raw samples in microseconds of one launch; empty if and only if it failed.
        outcome: ``ok``, or the kind of failure.
        message: the reason of a failure.
        compile_s, check_s: seconds of compilation and check; 0 if unknown.
        registers, smem: registers of a thread, shared memory of a CTA in bytes; 0 if unknown.
    """

    samples_us: tuple[float, ...]
    outcome: Outcome = Outcome.OK
    message: str = ""
    compile_s: float = 0.0
    check_s: float = 0.0
    registers: int = 0
    smem: int = 0

    def __post_init__(self) -> None:
        if self.outcome is not Outcome.OK and self.outcome not in _FAILURES:
            raise SpaceError(f"the outcome of a recorded config must be ok or a failure, got {self.outcome}")
        if (self.outcome is Outcome.OK) != bool(self.samples_us):
            raise SpaceError(
                f"a config must have samples if and only if its outcome is ok, got {self.outcome}"
            )
        if not all(0 < sample < float("inf") for sample in self.samples_us):
            raise SpaceError("times must be positive and finite")


@dataclasses.dataclass(frozen=True)
class RecordedSpace:
    """A space of which every config was measured; row i of ``points`` belongs to ``entries[i]``.

    Attributes:
        name: name for people and for result files.
        family: name of the family.
        knobs: knobs with exactly the recorded values.
        points: (N, knobs) value indices in lexicographic order.
        entries: one result for each row.
        problem, device: what was recorded; stand-ins if the file does not say.
        provenance: what the file says about its origin; ``planned`` is the number of configs that it should
            hold, ``interrupted`` says that it was never closed.
    """

    name: str
    family: str
    knobs: tuple[Knob, ...]
    points: npt.NDArray[np.int16]
    entries: tuple[Entry, ...]
    problem: GemmProblem
    device: DeviceSpec
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any(entry.samples_us for entry in self.entries):
            raise SpaceError(f"{self.name}: no config was measured; record it again")

    def __len__(self) -> int:
        return len(self.points)

    @functools.cached_property
    def index(self) -> Pool:
        """The configs as a pool for look-ups; no row of it is marked as proposed."""
        return Pool(self.family, self.knobs, self.points)

    @functools.cached_property
    def heuristic_configs(self) -> list[Config]:
        """The family's heuristic configs that were recorded; empty for kernels of others.

        A recorded config counts as what it is completed to today. A knob deleted since then leaves several
        that count as the same one; all of them are given.
        """
        family = FAMILIES.get(self.family)
        if family is None:
            return []
        recorded: dict[Config, list[Config]] = {}
        for config in map(self.index.config, range(len(self))):
            recorded.setdefault(family.completed(config), []).append(config)
        own = family.heuristic_configs(self.problem, self.device)
        return [config for today in own for config in recorded.get(today, ())]

    @functools.cached_property
    def true_us(self) -> npt.NDArray[np.float64]:
        """The median of all samples of each row, NaN for those that failed."""
        values = [median(entry.samples_us) if entry.samples_us else np.nan for entry in self.entries]
        return np.asarray(values)

    @functools.cached_property
    def optimum_us(self) -> float:
        """The lowest true time."""
        return float(np.nanmin(self.true_us))

    @property
    def working(self) -> int:
        """The number of configs that ran and were right."""
        return int(np.isfinite(self.true_us).sum())

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the best of the recorded configs may not be the fastest of all, as sentences."""
        planned = self.provenance.get("planned", len(self))
        found = [f"it holds {len(self)} of {planned} configs"] if planned > len(self) else []
        if self.provenance.get("interrupted"):
            found.append("the program that wrote it never closed it")
        return tuple(f"{self.name}: {why}, so the optimum may be missing" for why in found)

    def row(self, config: Config) -> int:
        """The row of a config.

        Raises:
            KeyError: the config was not recorded.
        """
        row = self.index.index_of(config)
        if row is None:
            raise KeyError(f"{config} is not among the {len(self)} recorded configs of {self.name}")
        return row

    def fraction(self, row: int) -> float:
        """Optimum over the true time of a row: 1 for the best, NaN if it failed."""
        return self.optimum_us / float(self.true_us[row])

    def best(self, count: int) -> list[Config]:
        """The ``count`` configs of the lowest true times, the fastest first."""
        order = np.argsort(self.true_us, kind="stable")[:count]
        return [self.index.config(int(row)) for row in order if np.isfinite(self.true_us[row])]

    def best_of(self, other: RecordedSpace, count: int) -> list[Config]:
        """The ``count`` best configs of another space of the same kernel that this one holds, under the name
        that the family has here: files of others name it after themselves.

        Raises:
            SpaceError: the other space is this one, is of another kernel, or has no config of this one.
        """
        if self._is_copy(other):
            raise SpaceError(
                f"{other.name} holds the same times as {self.name}: every run would begin with the optimum; "
                "use a space of another device or problem"
            )
        here, there = ({knob.name for knob in space.knobs} for space in (self, other))
        if here != there:
            raise SpaceError(
                f"{other.name} is not of the same kernel: only one of the two has the knobs "
                f"{', '.join(sorted(here ^ there))}"
            )
        renamed = (dataclasses.replace(one, family=self.family) for one in other.best(len(other)))
        found = itertools.islice((one for one in renamed if self.index.index_of(one) is not None), count)
        if chosen := list(found):
            return chosen
        raise SpaceError(
            f"{self.name} holds none of the {other.working} configs that worked in {other.name}; "
            "use a space of the same kernel that was recorded over the same configs"
        )

    def _is_copy(self, other: RecordedSpace) -> bool:
        # NOTE: the rows of a file of others come in another order.
        return np.array_equal(np.sort(self.true_us), np.sort(other.true_us), equal_nan=True)


def assemble(
    knobs: Sequence[Knob], configs: Sequence[Sequence[Any]], entries: Sequence[Entry]
) -> tuple[npt.NDArray[np.int16], tuple[Entry, ...]]:
    """Points and entries in the order of :attr:`RecordedSpace.points`, from rows of knob values.

    Raises:
        SpaceError: a value is not legal for its knob, or a config occurs twice.
    """
    position = [{value: i for i, value in enumerate(knob.values)} for knob in knobs]
    try:
        points = [[at[value] for at, value in zip(position, row, strict=True)] for row in configs]
    except KeyError as error:
        raise SpaceError(f"{error.args[0]!r} is not among the values of its knob; record it again") from error
    order = sorted(range(len(points)), key=points.__getitem__)
    for one, other in itertools.pairwise(order):
        if points[one] == points[other]:
            raise SpaceError(f"a config occurs twice, keep one: {list(configs[one])}")
    table = np.asarray([points[i] for i in order], dtype=np.int16).reshape(-1, len(knobs))
    return table, tuple(entries[i] for i in order)
