"""The correctness gate for a config of any family, on any device, and the values that it expects.

Problems that differ in their extents alone mostly share a kernel, which is compiled once.
"""

from __future__ import annotations

from typing import Any

from kernels.base.family import Family
from kernels.base.spec import BuildSpec
from kernels.compiler.build import build
from tilewright import Artifact, Config, GemmProblem, LaunchPlan
from tilewright.launch import Kernel, load
from tuner.devices.base import Device, Tensors
from tuner.measure.correctness import check, exact_slices

_BUILT: dict[tuple[BuildSpec, LaunchPlan], Artifact] = {}


def built(device: Device, family: Family[Any], config: Config, problem: GemmProblem) -> Kernel:
    """The kernel of a config, which must be valid; to be closed."""
    reason = family.why_invalid(config, problem, device.spec)
    assert reason is None, reason
    key = family.build_spec(config, problem, device.spec), family.plan(config, problem, device.spec)
    if key not in _BUILT:
        _BUILT[key] = build(family, config, problem, device.spec)
    return load(_BUILT[key], overlap=True)


def wrong(device: Device, family: Family[Any], config: Config, problem: GemmProblem) -> str | None:
    """The reason the kernel of a config is wrong for a problem, or None."""
    kernel = built(device, family, config, problem)
    try:
        return check(device, kernel, problem)
    finally:
        kernel.close()


def reference_values(device: Device, problem: GemmProblem, tensors: Tensors) -> Any:
    """D in float64, before rounding to the output type."""
    return device.xp.concatenate(list(exact_slices(device.xp, problem, tensors)), axis=1)
