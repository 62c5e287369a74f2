"""Small config spaces with an explicit cost: searched by a driver, or recorded as a whole."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.base.family import ConfigSpace, Rule
from kernels.base.knobs import Knob
from tilewright.artifact import Artifact, Grid, LaunchPlan, Resources, Serves
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Outcome
from tuner.replay.space import Entry, RecordedSpace, assemble
from tuner.search.points import valid_points
from tuner.search.search import Proposal, Search

PROBLEM = GemmProblem(256, 256, 256)
DEVICE = DeviceSpec("host", "x86_64_v3", "test CPU", 2, 1 << 30, 1 << 20)
CUDA_DEVICE = DeviceSpec("cuda", "sm_90", "test GPU", 132, 1 << 37, 1 << 25)


@dataclasses.dataclass(slots=True)
class ToyKnobs:
    tile: int
    stages: int
    order: str
    split: int
    vector: int


def _too_big(knobs: ToyKnobs, _problem: GemmProblem, _device: DeviceSpec) -> str | None:
    return "tile * stages must be at most 256" if knobs.tile * knobs.stages > 256 else None


def _no_split(knobs: ToyKnobs, _problem: GemmProblem, _device: DeviceSpec) -> str | None:
    return "hilbert order does not split" if knobs.order == "hilbert" and knobs.split > 1 else None


class ToyFamily(ConfigSpace[ToyKnobs]):
    """621 valid configs among 1080 searched points."""

    knobs_type = ToyKnobs
    knobs = (
        Knob("tile", (16, 32, 48, 64, 96, 128), "tile"),
        Knob("stages", (1, 2, 3, 4, 5, 8), "stages", searched=(1, 2, 3, 4, 5)),
        Knob("order", ("rows", "columns", "hilbert"), "order"),
        Knob("split", (1, 2, 4, 8), "split"),
        Knob("vector", (1, 2, 4), "vector", absent=1),
    )
    rules = (Rule(("tile", "stages"), _too_big), Rule(("order", "split"), _no_split))

    def __init__(self, name: str = "toy", scale: float = 1.0) -> None:
        self.name = name
        self.scale = scale

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        del device
        return "the toy multiplies no odd m" if problem.m % 2 else None

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        del problem, device
        return [self.make(32, 2), self.make(64, 2), self.make(32, 2)]

    def make(self, tile: int, stages: int, order: str = "rows", split: int = 1, vector: int = 1) -> Config:
        return self.config(ToyKnobs(tile, stages, order, split, vector))

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        del problem, device
        tile = self.knob_values(config).tile
        return LaunchPlan("elf", "x86_64_v3", "toy", (1, 1, 1), Grid(tile, tile), (), Serves.of(PROBLEM))

    def cost(self, config: Config) -> float:
        """Microseconds; the optimum is tile 48, stages 5, columns, split 2, vector 4, at 100."""
        knobs: Any = self.knob_values(config)
        slow = 1 + abs(knobs.tile - 48) / 40 + 0.15 * abs(knobs.stages - 5)
        slow *= {"rows": 1.3, "columns": 1.0, "hilbert": 1.15}[knobs.order]
        slow *= 1 + 0.2 * abs(knobs.split - 2) + 0.1 * abs(knobs.vector - 4)
        return 100.0 * self.scale * slow


class TinyFamily(ToyFamily):
    """30 valid configs: 3 tiles, 2 stages, (order, split) 2 * 2 + 1."""

    knobs = (
        Knob("tile", (16, 32, 48), "tile"),
        Knob("stages", (1, 2), "stages"),
        Knob("order", ("rows", "columns", "hilbert"), "order"),
        Knob("split", (1, 2), "split"),
        Knob("vector", (1,), "vector"),
    )


TOY = ToyFamily()
TINY = TinyFamily("tiny")
SLOW_TOY = ToyFamily("slow_toy", 3.0)


def toy_artifact(config: Config, registers: int = 32, smem: int = 1024) -> Artifact:
    """An artifact whose binary is the config's text."""
    plan = LaunchPlan("elf", "x86_64_v3", "toy", (1, 1, 1), Grid(16, 16), (), Serves.of(PROBLEM))
    resources = Resources(registers=registers, static_smem=smem)
    return Artifact(plan, resources, "source", "cc 1", str(config).encode())


Result = tuple[Outcome, float | None]
FAMILIES = {family.name: family for family in (TOY, SLOW_TOY, TINY)}
FAILED = (Outcome.LAUNCH_ERROR, None)


def measure(config: Config) -> Result:
    family = FAMILIES[config.family]
    return Outcome.OK, family.cost(config)


def drive(
    search: Search,
    result: Callable[[Config], Result] = measure,
    stop_after: int | None = None,
    known: Sequence[Proposal] = (),
) -> list[Proposal]:
    """Ask whenever the search is ready, tell in order; returns what was told."""
    replayed, running, told = deque(known), deque[Proposal](), list[Proposal]()
    while stop_after is None or len(told) < stop_after:
        while search.ready and search.measured + search.in_flight < search.budget:
            if replayed:
                one = replayed.popleft()
                running.append(search.propose(one.config, one.origin))
            elif proposal := search.ask():
                running.append(proposal)
            else:
                break
        if not running:
            break
        search.tell(running[0], *result(running[0].config))
        told.append(running.popleft())
    return told


def toy_space(
    noise: float = 0.0,
    fails: Callable[[Config], bool] = lambda _config: False,
    family: ToyFamily = TOY,
    device: DeviceSpec = CUDA_DEVICE,
    samples: int = 15,
) -> RecordedSpace:
    """Every valid toy config, with log-normal samples around its cost."""
    rng = np.random.default_rng(0)
    configs = [family.at(point) for point in valid_points(family, PROBLEM, device)]

    def entry(config: Config) -> Entry:
        if fails(config):
            return Entry((), Outcome.WRONG_RESULT, "wrong on purpose", 0.5, 0.25)
        drawn = family.cost(config) * rng.lognormal(0.0, noise, samples)
        return Entry(tuple(drawn.tolist()), compile_s=0.5, check_s=0.25, registers=32, smem=1024)

    knobs = tuple(Knob(knob.name, knob.values, "") for knob in family.knobs)
    rows = [[config[knob.name] for knob in knobs] for config in configs]
    points, entries = assemble(knobs, rows, [entry(config) for config in configs])
    return RecordedSpace("toy-space", family.name, knobs, points, entries, PROBLEM, device)
