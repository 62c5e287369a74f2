"""``Pool``: the valid configs of one family, with a mark on each that was proposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.base.family import ConfigSpace
from kernels.base.knobs import Knob
from tilewright.errors import InvalidProblem
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tuner.search.points import Points, valid_points

Indices = npt.NDArray[np.int64]
Distances = npt.NDArray[np.float32]


class Pool:
    """Valid configs as value indices, one row for each, with a mark on each that was proposed.

    A point is taken from the moment it is proposed, so that pending points are never proposed twice.

    Attributes:
        family: name of the family.
        knobs: in the order of the columns.
        points: (N, knobs) value indices, in lexicographic order.
        squares: for each knob, the (values, values) squared distances of :meth:`nearest`.
    """

    def __init__(self, family: str, knobs: Sequence[Knob], points: Points) -> None:
        self.family = family
        self.knobs = tuple(knobs)
        self._radix = _radix(self.knobs)
        codes = points.astype(np.int64) @ self._radix
        order = np.argsort(codes, kind="stable")
        self._codes = codes[order]
        self.points = points[order]
        # NOTE: column-major, because distances are added up knob by knob over all points.
        self._columns = np.ascontiguousarray(self.points.T)
        self._cost = [distances(knob) for knob in self.knobs]
        self.squares = [np.square(cost) for cost in self._cost]
        self._taken = np.zeros(len(points), dtype=bool)
        self._reserved = np.zeros(len(points), dtype=bool)
        self._index = {knob.name: {value: i for i, value in enumerate(knob.values)} for knob in self.knobs}

    @classmethod
    def of(cls, family: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec) -> Pool:
        """Every valid config of a family among the searched values; empty if there is none."""
        return cls(family.name, family.knobs, valid_points(family, problem, device))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def free(self) -> int:
        """The number of points that were not proposed yet."""
        return len(self) - int(np.count_nonzero(self._taken))

    @property
    def unclaimed(self) -> int:
        """The number of points that were neither proposed nor reserved."""
        return len(self) - int(np.count_nonzero(self._taken | self._reserved))

    def config(self, index: int) -> Config:
        """The config of a row."""
        pairs = zip(self.knobs, self.points[index], strict=True)
        return Config.of(self.family, {knob.name: knob.values[value] for knob, value in pairs})

    def index_of(self, config: Config) -> int | None:
        """The row of a config, or None if it is not in the pool."""
        values = dict(config.knobs)
        if config.family != self.family or values.keys() != self._index.keys():
            return None
        point = [self._index[knob.name].get(values[knob.name], -1) for knob in self.knobs]
        return None if -1 in point else self.find(point)

    def find(self, point: Sequence[int]) -> int | None:
        """The row of a point, or None if it is not valid."""
        rows = self._rows(np.asarray([point], dtype=np.int64) @ self._radix)
        return int(rows[0]) if len(rows) else None

    def take(self, index: int) -> None:
        """Mark a row as proposed."""
        self._taken[index] = True

    def taken(self, rows: Indices) -> npt.NDArray[np.bool_]:
        """Which of some rows were proposed before."""
        marks: npt.NDArray[np.bool_] = self._taken[rows]
        return marks

    def reserve(self, index: int) -> None:
        """Keep a free row for a recorded trial that is replayed later."""
        self._reserved[index] = True

    def release(self, index: int) -> None:
        """The inverse of :meth:`reserve`; nothing if the row is not reserved."""
        self._reserved[index] = False

    def is_reserved(self, index: int) -> bool:
        """Whether a row is kept for a recorded trial."""
        return bool(self._reserved[index])

    def unreserved(self, rng: np.random.Generator) -> int:
        """The row of a free point that is not reserved, drawn uniformly; at least one must be left."""
        return int(rng.choice(np.flatnonzero(~(self._taken | self._reserved))))

    def nearest(self, point: Sequence[int], rng: np.random.Generator) -> int:
        """The row of the free point nearest to a point of the knobs' product; ties are broken at random.

        The distance along a knob of names is 0 or 1; along a knob of numbers it is the fraction of the range
        between the two positions.

        Raises:
            IndexError: every point is taken.
        """
        self.need_free()
        exact = self.find(point)
        if exact is not None and not self._taken[exact]:
            return exact
        distance = np.zeros(len(self), dtype=np.float32)
        for column, cost, value in zip(self._columns, self._cost, point, strict=True):
            distance += cost[value][column]
        distance[self._taken] = np.inf
        return int(rng.choice(np.flatnonzero(distance == distance.min())))

    def random(self, rng: np.random.Generator) -> int:
        """The row of a free point, drawn uniformly.

        Raises:
            IndexError: every point is taken.
        """
        self.need_free()
        return int(rng.choice(np.flatnonzero(~self._taken)))

    def some(self, count: int, rng: np.random.Generator) -> Indices:
        """Up to ``count`` free rows, drawn at random.

        Raises:
            IndexError: every point is taken.
        """
        self.need_free()
        free = np.flatnonzero(~self._taken)
        chosen: Indices = rng.choice(free, min(count, len(free)), replace=False)
        return chosen

    def squared(self, rows: Indices, others: Indices) -> Distances:
        """(knobs, rows, others) squared distances along each knob."""
        points, apart = self._columns, np.empty((len(self.knobs), len(rows), len(others)), dtype=np.float32)
        for knob, square in enumerate(self.squares):
            apart[knob] = square[points[knob, rows]][:, points[knob, others]]
        return apart

    def neighbours(self, index: int) -> Indices:
        """Rows of the free points that differ from a row in exactly one knob."""
        point = self.points[index].astype(np.int64)
        codes = [
            self._codes[index] + (np.arange(len(knob.values)) - value) * radix
            for knob, value, radix in zip(self.knobs, point, self._radix, strict=True)
        ]
        rows = self._rows(np.concatenate(codes))
        free: Indices = rows[~self._taken[rows] & (rows != index)]
        return free

    def _rows(self, codes: Indices) -> Indices:
        """The rows of the codes that the pool holds."""
        rows = np.searchsorted(self._codes, codes)
        inside = rows < len(self)
        rows, codes = rows[inside], codes[inside]
        held: Indices = rows[self._codes[rows] == codes].astype(np.int64)
        return held

    def need_free(self) -> None:
        """Do nothing if a point is free.

        Raises:
            IndexError: every point is taken.
        """
        if not self.free:
            raise IndexError(f"every one of the {len(self)} valid configs of {self.family} was proposed")


def _radix(knobs: Sequence[Knob]) -> Indices:
    """Weights that turn a point into one integer whose order is the lexicographic one."""
    sizes = [len(knob.values) for knob in knobs]
    if math.prod(sizes) >= 2**63:
        raise InvalidProblem(f"the knobs span {math.prod(sizes):.1e} points; search fewer values, under 2^63")
    return np.asarray([math.prod(sizes[i + 1 :]) for i in range(len(sizes))], dtype=np.int64)


def distances(knob: Knob) -> Distances:
    """(values, values) distances between any two values of a knob, as in :meth:`Pool.nearest`."""
    position = np.arange(len(knob.values))
    apart: Distances = np.abs(position[:, None] - position[None, :]).astype(np.float32)
    numbers = all(isinstance(value, int) for value in knob.values)
    scaled: Distances = apart / np.float32(max(1, len(knob.values) - 1)) if numbers else np.sign(apart)
    return scaled
