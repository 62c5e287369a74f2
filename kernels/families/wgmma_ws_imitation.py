"""Configs of family ``wgmma_ws`` that divide the work as a kernel of another library does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from kernels.families.wgmma_ws_knobs import KNOBS, Knobs
from kernels.families.wgmma_ws_model import cycles
from kernels.families.wgmma_ws_picks import alike_but_stores
from kernels.families.wgmma_ws_walk import SMALL
from kernels.outline import Outline
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

_SPLITS = [int(value) for knob in KNOBS if knob.name == "split_k" for value in knob.values]

# Schedule, consumers along wgmma's M and along its N: which of them suit depends on the tile.
_CONSUMERS = (
    ("cooperative", 2, 1),
    ("cooperative", 3, 1),
    ("cooperative", 1, 2),
    ("cooperative", 1, 1),
    ("pingpong", 1, 1),
)


def alike(
    outline: Outline, problem: GemmProblem, device: DeviceSpec, valid: Callable[[Knobs], bool]
) -> list[Knobs]:
    """The fastest by the model of either schedule and each number of consumers that follow the outline, or
    the first of those like it that any config can follow; with its own k of a stage where that is valid."""

    def rank(k: Knobs) -> tuple[bool, float]:
        return k.tile_k != outline.tile_k, cycles(k, problem, device)

    for told in outline.alike:
        best: dict[tuple[str, int], Knobs] = {}
        for k in sorted(filter(valid, _candidates(told, problem, device)), key=rank):
            best.setdefault((k.schedule, k.consumers), k)
        if best:
            return list(best.values())
    return []


def _candidates(outline: Outline, problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    swaps = (0, 1) if problem.m <= 2 * SMALL else (0,)
    deep = 256 // problem.dtype.size
    split_k = min(_SPLITS, key=lambda split: abs(split - outline.split_k))
    spread = (*(outline.cluster or (1, 1)), 1, split_k)
    for swap, (schedule, *consumers), tile_k in itertools.product(swaps, _CONSUMERS, (deep // 2, deep)):
        consumers_m, consumers_n = reversed(consumers) if swap else consumers
        shape = (swap, schedule, outline.tile_m, outline.tile_n, consumers_m, consumers_n)
        if outline.tile_m % consumers_m == 0 == outline.tile_n % consumers_n:
            yield from alike_but_stores(problem, device, shape, tile_k, spread)
