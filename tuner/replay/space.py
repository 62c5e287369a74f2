"""``RecordedSpace``: every valid config of one problem on one device, with the samples it was measured at."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.base.knobs import Knob
from tilewright.errors import TilewrightError
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.measure.stats import median
from tuner.search.pool import Pool

_FAILURES = frozenset(Outcome) - {Outcome.OK, Outcome.PRUNED}


class SpaceError(TilewrightError):
    """A file holds no recorded space; the message says what is wrong with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What a recorded config did.

    Attributes:
        samples_us: raw samples in microseconds of one launch; none exactly if it failed.
        outcome: ``ok``, or how it failed.
        message: the reason where it failed.
        compile_s, check_s: seconds that these took; 0 where unknown.
        registers, smem: of a thread, and bytes of a block; 0 where unknown.
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
            raise SpaceError(f"a recorded config is ok or failed, got {self.outcome}")
        if (self.outcome is Outcome.OK) != bool(self.samples_us):
            raise SpaceError(f"a config has samples exactly if it went well, got {self.outcome}")
        if not all(0 < sample < float("inf") for sample in self.samples_us):
            raise SpaceError("times must be positive and finite")


@dataclasses.dataclass(frozen=True)
class RecordedSpace:
    """A space measured from end to end; rows of ``points`` and ``entries`` belong together.

    Attributes:
        name: for people, and for the files of results.
        family: name of the family.
        knobs: with exactly the recorded values.
        points: (N, knobs) value indices in lexicographic order.
        entries: one a row.
        problem, device: what was recorded; stand-ins where the file does not say.
        provenance: whatever the file tells of its origin.
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
            raise SpaceError(f"{self.name}: no config was measured")

    def __len__(self) -> int:
        return len(self.points)

    @functools.cached_property
    def index(self) -> Pool:
        """The configs as a pool for look-ups; nothing of it is ever taken."""
        return Pool(self.family, self.knobs, self.points)

    @functools.cached_property
    def true_us(self) -> npt.NDArray[np.float64]:
        """The median of all samples of each row, NaN for those that failed."""
        values = [median(entry.samples_us) if entry.samples_us else np.nan for entry in self.entries]
        return np.asarray(values)

    @functools.cached_property
    def optimum_us(self) -> float:
        """The lowest true time."""
        return float(np.nanmin(self.true_us))

    def row(self, config: Config) -> int:
        """The row of a config.

        Raises:
            KeyError: it was not recorded.
        """
        row = self.index.index_of(config)
        if row is None:
            raise KeyError(f"{config} is not among the {len(self)} recorded configs of {self.name}")
        return row

    def fraction(self, row: int) -> float:
        """Optimum over the true time of a row: 1 for the best, NaN where it failed."""
        return self.optimum_us / float(self.true_us[row])

    def best(self, count: int) -> list[Config]:
        """The ``count`` configs of the lowest true times, the fastest first."""
        order = np.argsort(self.true_us, kind="stable")[:count]
        return [self.index.config(int(row)) for row in order if np.isfinite(self.true_us[row])]


def assemble(
    knobs: Sequence[Knob], configs: Sequence[Sequence[Any]], entries: Sequence[Entry]
) -> tuple[npt.NDArray[np.int16], tuple[Entry, ...]]:
    """Rows of knob values and their entries in the order of :attr:`RecordedSpace.points`.

    Raises:
        SpaceError: a value is none of its knob's, or a config is there twice.
    """
    position = [{value: i for i, value in enumerate(knob.values)} for knob in knobs]
    try:
        points = [[at[value] for at, value in zip(position, row, strict=True)] for row in configs]
    except KeyError as error:
        raise SpaceError(f"{error.args[0]!r} is not among the values of its knob") from error
    order = sorted(range(len(points)), key=points.__getitem__)
    for one, other in itertools.pairwise(order):
        if points[one] == points[other]:
            raise SpaceError(f"a config is there twice: {list(configs[one])}")
    table = np.asarray([points[i] for i in order], dtype=np.int16).reshape(-1, len(knobs))
    return table, tuple(entries[i] for i in order)
