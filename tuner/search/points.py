"""``valid_points``: every config of a space that is valid for a problem on a device."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.base.family import ConfigSpace, Rule
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

Points = npt.NDArray[np.int16]


def valid_points(space: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec) -> Points:
    """The valid configs among the searched values: (N, knobs) value indices in lexicographic order,
    or as the space lists them."""
    listed = space.listed(problem, device)
    if listed is not None:
        return np.array(listed, dtype=np.int16).reshape(-1, len(space.knobs))
    tree = _Tree(space, problem, device)
    if not space.why_unsupported(problem, device):
        tree.descend(0)
    heads = np.array(tree.heads, dtype=np.int16).reshape(len(tree.heads), tree.shared)
    counts = [len(tails) for tails in tree.tails]
    tails = [np.empty((0, len(space.knobs) - tree.shared), dtype=np.int16), *tree.tails]
    return np.hstack([np.repeat(heads, counts, axis=0), np.concatenate(tails)])


class _Tree:
    """A depth-first search that tests each rule once the last knob that it reads is chosen.

    A rule is called once for the values that it reads. From some knob on, most of the choices before are read
    by no later rule; what the knobs from there on may be is found once for each choice of the others.

    Attributes:
        shared: the place of that knob.
        heads: choices of the knobs before it.
        tails: for each of them, what the others may be.
    """

    def __init__(self, space: ConfigSpace[Any], problem: GemmProblem, device: DeviceSpec) -> None:
        self._knobs = space.knobs
        self._due = [[_Rule(rule, problem, device) for rule in rules] for rules in space.rules_by_last_knob()]
        self._values = space.knobs_type(**{knob.name: knob.values[0] for knob in space.knobs})
        read_later = [self._read_later(depth) for depth in range(len(self._knobs))]
        narrow = (depth for depth, names in enumerate(read_later) if depth and 2 * len(names) <= depth)
        self.shared = next(narrow, len(self._knobs))
        self._key = [_getter(names) for names in read_later]
        self._known: list[dict[Any, Points]] = [{} for _ in self._knobs]
        self._chosen: list[int] = []
        self.heads: list[tuple[int, ...]] = []
        self.tails: list[Points] = []

    def descend(self, depth: int) -> None:
        """Add the heads that begin with what is chosen."""
        if depth == self.shared:
            self.heads.append(tuple(self._chosen))
            self.tails.append(self._rest(depth))
            return
        for index in self._allowed(depth):
            self._chosen.append(index)
            self.descend(depth + 1)
            self._chosen.pop()

    def _allowed(self, depth: int) -> Iterator[int]:
        """Set the knob to each value that breaks no rule, and give its place."""
        knob = self._knobs[depth]
        for index, value in enumerate(knob.values):
            setattr(self._values, knob.name, value)
            if not any(rule.broken(self._values) for rule in self._due[depth]):
                yield index

    def _rest(self, depth: int) -> Points:
        if depth == len(self._knobs):
            return np.empty((1, 0), dtype=np.int16)
        key, known = self._key[depth](self._values), self._known[depth]
        if key not in known:
            found = [np.empty((0, len(self._knobs) - depth), dtype=np.int16)]
            found += [np.insert(self._rest(depth + 1), 0, index, axis=1) for index in self._allowed(depth)]
            known[key] = np.concatenate(found)
        return known[key]

    def _read_later(self, depth: int) -> list[str]:
        """The knobs before ``depth`` that rules read which are tested from there on."""
        read = {name for rules in self._due[depth:] for rule in rules for name in rule.reads}
        return [knob.name for knob in self._knobs[:depth] if knob.name in read]


class _Rule:
    """A rule on one problem and device, which remembers what it found."""

    def __init__(self, rule: Rule[Any], problem: GemmProblem, device: DeviceSpec) -> None:
        self.reads = rule.reads
        self._asked = rule.why, problem, device
        self._key = _getter(rule.reads)
        self._known: dict[Any, bool] = {}

    def broken(self, knobs: Any) -> bool:
        """Whether knobs break it."""
        key = self._key(knobs)
        if key not in self._known:
            why, problem, device = self._asked
            self._known[key] = why(knobs, problem, device) is not None
        return self._known[key]


def _getter(names: Sequence[str]) -> Callable[[Any], Any]:
    """A function that gives the values of knobs by name."""
    return operator.attrgetter(*names) if names else lambda _: None
