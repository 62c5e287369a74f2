"""Explains a config: its limits, occupancy, waves and bytes, and what other values of its knobs would do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kernels import limits
from kernels.arch import ARCHS
from kernels.base.family import Family
from kernels.base.knobs import Knob
from kernels.registry import family_named
from tilewright.artifact import LaunchPlan, Resources
from tilewright.schema.codec import KnobValue
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.explanation import Alternative, Explanation, Limit, Occupancy, Traffic, Waves
from tilewright.schema.problem import GemmProblem
from tilewright.schema.trial import Timing

_QUARTER_REGISTERS = 16384  # of an SM, whose quarters each hold whole warps
_REGISTER_UNIT = 256  # registers of a warp are handed out in this size
_RESERVED_SMEM = 1024  # of each CTA, by the driver


Measured = Callable[[Sequence[Config]], Mapping[Config, float]]


def explain(
    config: Config,
    problem: GemmProblem,
    device: DeviceSpec,
    timing: Timing | None = None,
    resources: Resources | None = None,
    measured: Measured | None = None,
) -> Explanation:
    """Explain a config, as far as measurements and the compiled kernel are known.

    Args:
        timing: measurement of the config; its clock is used for the limits.
        resources: those of the compiled kernel; without them the occupancy is left out.
        measured: gives the medians in microseconds of those configs that were measured in the same way.

    Raises:
        KeyError: no family has or had the config's name.
    """
    family = family_named(config.family)
    config = family.completed(config)
    broken = family.why_invalid(config, problem, device)
    plan = None if broken else family.plan(config, problem, device)
    mhz = timing.mhz if timing else None
    found = _limits(plan, problem, device, mhz)
    highest = next((one for one in found if one.us is not None), None)
    reached = highest.us / timing.median_us if timing and highest and highest.us else None
    occupancy = _occupancy(plan, resources, device) if plan and resources else None
    gpu = plan if device.kind == "cuda" else None
    loaded = limits.loaded_bytes(problem, gpu.grid) if gpu else None
    waves = _waves(gpu, problem, device, occupancy.ctas if occupancy else 1) if gpu else None
    return Explanation(
        limits=found,
        nearest_limit=highest.name if highest else None,
        reached=reached,
        occupancy=occupancy,
        waves=waves,
        traffic=Traffic(problem.total_bytes, loaded),
        alternatives=() if broken else tuple(_alternatives(family, config, problem, device, measured)),
        outdated=broken or "",
    )


def _limits(
    plan: LaunchPlan | None, problem: GemmProblem, device: DeviceSpec, mhz: float | None
) -> tuple[Limit, ...]:
    found = [limits.compute(problem, device, mhz), limits.memory(problem, device)]
    if device.kind == "cuda":
        found += [limits.l2(problem, plan.grid, device, mhz)] if plan else []
        found += [limits.launch(device, mhz)]
    return tuple(sorted(found, key=lambda one: -1.0 if one.us is None else one.us, reverse=True))


def _occupancy(plan: LaunchPlan, resources: Resources, device: DeviceSpec) -> Occupancy | None:
    arch = ARCHS.get(device.arch)
    if arch is None or arch.sm_limits is None or not resources.registers:
        return None
    most_threads, slots = arch.sm_limits
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    warps = -(-threads // 32)
    of_warp = -(-resources.registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    smem = plan.dynamic_smem + resources.static_smem
    allowed = {
        "shared memory": device.smem_per_sm // (smem + _RESERVED_SMEM),
        "registers": _QUARTER_REGISTERS // of_warp * 4 // warps,
        "threads": most_threads // threads,
        "CTA slots": slots,
    }
    binding = min(allowed, key=lambda name: allowed[name])
    ctas = allowed[binding]
    limit = device.smem_per_block
    return Occupancy(ctas, binding, allowed, ctas * warps, threads, resources.registers, smem, limit)


def _waves(plan: LaunchPlan, problem: GemmProblem, device: DeviceSpec, ctas_per_sm: int) -> Waves:
    grid = plan.grid
    tiles = grid.tiles(problem)
    work = tiles * grid.split_k * grid.cluster_k * problem.batch
    resident = device.sm_count * max(1, ctas_per_sm)
    # NOTE: a persistent kernel has one CTA for each SM that its clusters can fill; they take tile after tile.
    at_once = min(grid.max_blocks, resident) if grid.max_blocks else resident
    waves = -(-work // at_once)
    last = (work - (waves - 1) * at_once) / at_once
    covered = tiles * grid.tile_m * grid.tile_n
    useful = problem.m * problem.n / covered * work / (waves * at_once)
    return Waves(work, at_once, waves, last, useful)


def _alternatives(
    family: Family[Any], config: Config, problem: GemmProblem, device: DeviceSpec, measured: Measured | None
) -> Iterator[Alternative]:
    values = dict(config.knobs)
    changes = [(knob.name, one) for knob in family.knobs for one in _next_values(knob, values.get(knob.name))]
    others = [Config.of(family.name, values | {name: value}) for name, value in changes]
    medians = measured([config, *others]) if measured else {}
    own_us, own_clocks = medians.get(config), _clocks(family, config, problem, device)
    for (name, value), other in zip(changes, others, strict=True):
        broken = family.why_invalid(other, problem, device)
        if broken:
            yield Alternative(name, value, broken, valid=False)
            continue
        unworthy = family.why_not_searched(other, problem, device) or ""
        median = medians.get(other)
        if median and own_us:
            yield Alternative(name, value, unworthy, True, median, median / own_us)
            continue
        clocks = _clocks(family, other, problem, device)
        # NOTE: equal clocks say only that the model does not see this knob.
        ratio = clocks / own_clocks if clocks and own_clocks and clocks != own_clocks else None
        yield Alternative(name, value, unworthy, True, median, ratio, estimated=ratio is not None)


def _clocks(family: Family[Any], config: Config, problem: GemmProblem, device: DeviceSpec) -> float | None:
    valid = family.why_invalid(config, problem, device) is None
    return family.estimated_clocks(config, problem, device) if valid else None


def _next_values(knob: Knob, value: KnobValue | None) -> list[KnobValue]:
    """The legal values on both sides of a number; the others of a name."""
    if value not in knob.legal:
        return []
    if isinstance(value, str):
        return [one for one in knob.legal if one != value]
    at = knob.legal.index(value)
    return [one for index, one in enumerate(knob.legal) if abs(index - at) == 1]
