"""A device at its power limit, and the seconds that a race on it sees."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tuner.devices.base import Telemetry
from tuner.devices.host import HostDevice
from tuner.measure import interleave, timing


class Drawing(HostDevice):
    """A device under load that draws ``watts`` of its limit of 700."""

    def __init__(self, watts: float | None, mhz: float = 1400.0) -> None:
        super().__init__()
        self.spec = dataclasses.replace(self.spec, power_watts=700, clock_mhz=1980)
        self.told = Telemetry(mhz, watts)
        timing.loaded(self)

    def telemetry(self) -> Telemetry:
        return self.told


class Clock:
    """The seconds that a race sees; samples take theirs from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (interleave, timing):
            known = SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_by)
            monkeypatch.setattr(module, "time", known)

    def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += seconds

    def sampler(self, us: Callable[[], float], seconds: float = 0.001) -> Callable[[int], float]:
        """One whose samples take so many seconds."""

        def sample(_number: int) -> float:
            found = us()
            self.now += seconds
            return found

        return sample


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def drawing() -> type[Drawing]:
    return Drawing
