"""A recorded space in place of a family's, so that the search of live jobs runs on it unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernels.family import ConfigSpace
from kernels.registry import FAMILIES
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem
from tuner.replay.space import RecordedSpace


class RecordedFamily(ConfigSpace[dict[str, Any]]):
    """The configs of a space; first picks are those of the family that was recorded, where it is ours."""

    def __init__(self, space: RecordedSpace) -> None:
        self.name = space.family
        self.knobs = space.knobs
        self.rules = ()
        self._space = space

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """Only what was recorded can be replayed."""
        space = self._space
        same = (problem, device) == (space.problem, space.device)
        return None if same else f"{space.name} was recorded for {space.problem} on {space.device.name}"

    def why_invalid(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """Whether it was recorded, failed ones included: the rules let those through."""
        recorded = self._space.index.index_of(config) is not None
        return self.why_unsupported(problem, device) or (None if recorded else f"{config} was not recorded")

    def enumerate(self, problem: GemmProblem, device: DeviceSpec) -> Iterator[tuple[int, ...]]:
        """The recorded points."""
        if self.why_unsupported(problem, device) is None:
            yield from map(tuple, self._space.points.tolist())

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The family's own picks that were recorded; none for kernels of others."""
        family = FAMILIES.get(self.name)
        if family is None or [knob.name for knob in family.knobs] != [knob.name for knob in self.knobs]:
            return []
        own = family.picks(problem, device)
        return [config for config in own if self._space.index.index_of(config) is not None]

    def knob_values(self, config: Config) -> dict[str, Any]:
        """The knobs by name."""
        return dict(config.knobs)

    def config(self, knobs: dict[str, Any]) -> Config:
        """The inverse of :meth:`knob_values`."""
        return Config.of(self.name, knobs)
