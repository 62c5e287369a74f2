"""Heuristic configs of family ``gemv``, and the rules that refuse configs not worth a trial."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kernels.base.family import Rule
from kernels.gemv.config import SPLITS, Knobs
from kernels.gemv.layout import grid, loads_in_flight, stage_k, tile_weight_rows
from kernels.gemv.shape import GemvShape
from kernels.gemv.validity import RULES, why_no_mma
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import GemmProblem

_FEWEST_LOADS = 4  # in flight a lane, to cover the memory's latency
_MOST_THREADS = 2048  # of an SM
_BUSY_THREADS = 512  # of an SM, at 128 registers a thread
_PREFETCHED_STAGES = 2

# warps_k, steps, stages, min_ctas_per_sm: 4 to 8 KiB of weights in flight a warp, 64 to 128 KiB
# an SM. The last ones are for types and alignments that need more registers.
_K_MAJOR = (
    (8, 2, 2, 2),
    (4, 4, 1, 2),
    (8, 4, 1, 2),
    (4, 4, 2, 4),
    (16, 4, 1, 1),
    (4, 2, 2, 3),
    (4, 2, 2, 2),
    (4, 2, 1, 2),
    (1, 1, 2, 1),
)
_MN_MAJOR = (
    (8, 1, 3, 1),
    (4, 1, 3, 3),
    (4, 2, 2, 2),
    (4, 1, 4, 2),
    (4, 2, 1, 2),
    (4, 1, 1, 1),
    (1, 1, 1, 1),
)


def heuristic_configs(problem: GemmProblem, device: DeviceSpec) -> Iterator[Knobs]:
    """Configs whose loads in flight cover the memory's latency and whose CTAs fill the device once.

    The most promising one comes first; some may be invalid.
    """
    shape = GemvShape.of(problem)
    math = "mma" if why_no_mma(shape, device) is None else "fma"
    for structure in _K_MAJOR if shape.k_major else _MN_MAJOR:
        config = Knobs(math, *structure)
        if math == "fma":
            config.min_ctas_per_sm = 1
        yield _overlapped(_split(config, problem, device), problem, device)


def _split(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The config with as many splits as fill the device and leave every warp a round of its stages."""
    shape = GemvShape.of(problem)
    tiles = grid(config, shape).tiles(problem) * problem.batch
    resident = device.sm_count * max(config.min_ctas_per_sm, _BUSY_THREADS // config.threads)
    rounds = problem.k // (stage_k(config, shape) * config.warps_k * config.stages)
    most = max(1, min(resident // tiles, rounds))
    return dataclasses.replace(config, split_k=max(split for split in SPLITS if split <= most))


def _overlapped(config: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The config with prefetch and, if all of its CTAs run at once, a late release, if those are valid.

    With all CTAs running, an early release would let the next kernel occupy the SMs too early.
    """
    if device.arch != "sm_90":
        return config
    ctas = grid(config, GemvShape.of(problem)).tiles(problem) * problem.batch * config.split_k
    at_once = ctas <= device.sm_count * _BUSY_THREADS // config.threads
    late = dataclasses.replace(config, release="loaded" if at_once else "started")
    early = dataclasses.replace(late, prefetch=_PREFETCHED_STAGES)
    rules = (*RULES, *SEARCH_RULES)
    valid = (one for one in (early, late) if not any(rule.why(one, problem, device) for rule in rules))
    return next(valid, config)


def _why_fma(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    shape = GemvShape.of(p)
    if c.math == "fma" and shape.activation_rows > 4 and why_no_mma(shape, d) is None:
        return "FMA units are slower than the memory beyond 4 activation rows; tensor cores are not"
    return None


def _why_loads(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    loads = loads_in_flight(c, GemvShape.of(p))
    if loads < _FEWEST_LOADS:
        return f"{loads} loads in flight a lane do not cover the memory's latency"
    return None


def _why_idle_warps(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.warps_k > 1 and p.k <= (c.warps_k // 2) * stage_k(c, GemvShape.of(p)):
        return "half of the warps along k would have no stage"
    return None


def _why_split(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if c.split_k == 1:
        return None
    shape = GemvShape.of(p)
    if _weight_tiles(p) * (c.split_k - 1) * c.threads >= d.sm_count * _MOST_THREADS:
        return "split-K pays only if the tiles alone do not fill the SMs"
    if p.k < c.split_k * c.warps_k * stage_k(c, shape):
        return "every warp of every split needs a stage"
    return None


def _why_min_ctas(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    ctas = _weight_tiles(p) * c.split_k
    if c.min_ctas_per_sm > 1 and ctas <= d.sm_count * (c.min_ctas_per_sm - 1):
        return f"{ctas} CTAs never put {c.min_ctas_per_sm} on an SM"
    if c.min_ctas_per_sm > 1 and c.min_ctas_per_sm * c.threads > _MOST_THREADS:
        return f"an SM holds {_MOST_THREADS} threads"
    return None


def _why_prefetch(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if c.prefetch and p.operand_bytes < d.l2_bytes // 4:
        return "small operands stay in the L2 anyway"
    return None


def _weight_tiles(p: GemmProblem) -> int:
    shape = GemvShape.of(p)
    return -(-shape.weight_rows // tile_weight_rows(shape)) * p.batch


SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("math",), _why_fma),
    Rule(("steps", "stages"), _why_loads),
    Rule(("warps_k", "steps"), _why_idle_warps),
    Rule(("warps_k", "steps", "split_k"), _why_split),
    Rule(("warps_k", "split_k", "min_ctas_per_sm"), _why_min_ctas),
    Rule(("prefetch",), _why_prefetch),
)
