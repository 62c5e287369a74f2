"""Recorded spaces made of the toy family, for tests of the replay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from toy_family import CUDA_DEVICE, PROBLEM, TOY, ToyFamily

from kernels.family import Knob
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.trial import Outcome
from tuner.replay.space import Entry, RecordedSpace, assemble


def toy_space(
    noise: float = 0.0,
    fails: Callable[[Config], bool] = lambda _config: False,
    family: ToyFamily = TOY,
    device: DeviceSpec = CUDA_DEVICE,
    samples: int = 15,
) -> RecordedSpace:
    """Every valid toy config, with log-normal samples around its cost."""
    rng = np.random.default_rng(0)
    configs = [family.at(point) for point in family.enumerate(PROBLEM, device)]

    def entry(config: Config) -> Entry:
        if fails(config):
            return Entry((), Outcome.WRONG_RESULT, "wrong on purpose", 0.5, 0.25)
        drawn = family.cost(config) * rng.lognormal(0.0, noise, samples)
        return Entry(tuple(drawn.tolist()), compile_s=0.5, check_s=0.25, registers=32, smem=1024)

    knobs = tuple(Knob(knob.name, knob.values, "") for knob in family.knobs)
    rows = [[config[knob.name] for knob in knobs] for config in configs]
    points, entries = assemble(knobs, rows, [entry(config) for config in configs])
    return RecordedSpace("toy-space", family.name, knobs, points, entries, PROBLEM, device)
