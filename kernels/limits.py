"""Lower bounds of the time of one GEMM: what tensor cores, memory, L2 and launches need."""

from __future__ import annotations

from kernels.arch import ARCHS
from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.explanation import Limit
from tilewright.schema.problem import DType, GemmProblem

# Multiply-adds of tensor cores in a clock, relative to those for 16-bit types.
_TIMES: dict[DType, float] = {
    DType.FLOAT16: 1.0,
    DType.BFLOAT16: 1.0,
    DType.TFLOAT32: 0.5,
    DType.INT8: 2.0,
    DType.UINT8: 2.0,
    DType.FLOAT8_E4M3FN: 2.0,
    DType.FLOAT8_E5M2: 2.0,
}
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_BOUND = 2.0


def multiply_adds(dtype: DType, device: DeviceSpec, accumulate: DType = DType.FLOAT32) -> float | None:
    """Multiply-adds of an SM in a clock at most; None if the rate of the architecture is unknown."""
    arch = ARCHS.get(device.arch)
    if arch is None:
        return None
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return arch.float32 if dtype is DType.FLOAT32 else arch.float64
    lacks_type = dtype not in _TIMES or (dtype in _FLOAT8 and device.compute_capability < (8, 9))
    if arch.tensor is None or lacks_type:
        return None
    halved = arch.halved and "GeForce" in device.name and accumulate is DType.FLOAT32
    return _TIMES[dtype] * arch.tensor * (0.5 if halved else 1.0)


def compute(problem: GemmProblem, device: DeviceSpec, mhz: float | None) -> Limit:
    """The time that the multiply-adds need at the clock of the measurement, or at the highest one."""
    rate, clock = multiply_adds(problem.dtype, device, problem.accumulate), mhz or device.clock_mhz
    if not rate or not clock:
        return Limit("compute", None, f"no rate is known for {problem.dtype} on {device.arch}")
    us = problem.flops / 2 / (rate * device.sm_count * clock)
    when = "measured" if mhz else "highest"
    return Limit("compute", us, f"{rate:g} multiply-adds per SM and clock at the {when} {clock:.0f} MHz")


def memory(problem: GemmProblem, device: DeviceSpec) -> Limit:
    """The time to read each operand and write D once."""
    if not device.memory_gbps:
        return Limit("memory", None, "the bandwidth of the memory is not known")
    us = problem.total_bytes / device.memory_gbps / 1e3
    return Limit("memory", us, f"{device.memory_gbps} GB/s, each operand read and D written once")


def l2(problem: GemmProblem, grid: Grid, device: DeviceSpec, mhz: float | None) -> Limit:
    """The time in which the L2 delivers what all tiles load."""
    arch, clock = ARCHS.get(device.arch), mhz or device.clock_mhz
    if arch is None or arch.l2_bytes is None or not clock:
        return Limit("l2", None, f"no rate of the L2 is known for {device.arch}")
    us = loaded_bytes(problem, grid) / (arch.l2_bytes * device.sm_count * clock)
    return Limit("l2", us, f"{arch.l2_bytes} bytes per SM and clock, fitted on an H200")


def launch(device: DeviceSpec, mhz: float | None) -> Limit:
    """The time of a launch that computes nothing."""
    arch, clock = ARCHS.get(device.arch), mhz or device.clock_mhz
    if arch is None or arch.launch_clocks is None or not clock:
        return Limit("launch", None, f"the cost of a launch is not known for {device.arch}")
    return Limit("launch", arch.launch_clocks / clock, f"{arch.launch_clocks} clocks, fitted on an H200")


def loaded_bytes(problem: GemmProblem, grid: Grid) -> int:
    """Bytes of A and B that all tiles load; CTAs of a cluster share theirs."""
    rows = grid.tile_m / grid.cluster_n + grid.tile_n / grid.cluster_m
    return int(grid.tiles(problem) * problem.batch * rows * problem.dtype.nbytes(problem.k))


def roof(problem: GemmProblem, device: DeviceSpec, mhz: float | None) -> Limit | None:
    """The higher of the limits of compute and memory, which no config changes; None if either is unknown."""
    both = compute(problem, device, mhz), memory(problem, device)
    timed = [(one.us, one) for one in both if one.us is not None]
    return max(timed, key=lambda pair: pair[0])[1] if len(timed) == len(both) else None


def memory_bound(problem: GemmProblem, device: DeviceSpec) -> bool:
    """Whether the memory needs twice the time of the multiply-adds or more, so that a GPU's clock, which its
    power limit sets, hardly decides how long a GEMM takes; False if either is unknown."""
    needed, busy = memory(problem, device).us, compute(problem, device, None).us
    return needed is not None and busy is not None and needed >= _BOUND * busy
