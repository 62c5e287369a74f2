"""Lower bounds of the time of one GEMM: what tensor cores, memory, L2 and launches need."""

from __future__ import annotations

from tilewright.artifact import Grid
from tilewright.schema.device import DeviceSpec
from tilewright.schema.explanation import Limit
from tilewright.schema.problem import DType, GemmProblem

# Multiply-adds of an SM in a clock on tensor cores for 16-bit types, from NVIDIA's data sheets of A100, H100,
# B200 (by tcgen05; mma.sync stays below it) and, with float16 accumulators, RTX 3090, RTX 4090 and RTX 5090
# (330.3 TFLOP/s of 128 SMs at 2.52 GHz).
_TENSOR = {"sm_80": 1024, "sm_86": 512, "sm_89": 512, "sm_90": 2048, "sm_100": 4096, "sm_120": 512}
# Of these, GeForce cards accumulate in float32 at half the rate: 165.2 TFLOP/s of an RTX 4090.
_HALVED = ("sm_86", "sm_89", "sm_120")
_TIMES: dict[DType, float] = {
    DType.FLOAT16: 1.0,
    DType.BFLOAT16: 1.0,
    DType.TFLOAT32: 0.5,
    DType.INT8: 2.0,
    DType.UINT8: 2.0,
    DType.FLOAT8_E4M3FN: 2.0,
    DType.FLOAT8_E5M2: 2.0,
}
_FLOAT8_ARCHS = ("sm_89", "sm_90", "sm_100", "sm_120")
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
# The same of float32 and float64, which GeForce cards compute at 1/64 of that.
_OTHERS: dict[DType, dict[str, float]] = {
    DType.FLOAT32: {"sm_80": 64, "sm_86": 128, "sm_89": 128, "sm_90": 128, "sm_100": 128, "sm_120": 128},
    DType.FLOAT64: {"sm_80": 64, "sm_86": 2, "sm_89": 2, "sm_90": 128, "sm_100": 64, "sm_120": 2},
}
# Of the cost model of wgmma_ws, fitted to cycle counts on an H200.
L2_BYTES = {"sm_90": 64}
_BOUND = 2.0
LAUNCH_CLOCKS = {"sm_90": 3000}


def multiply_adds(dtype: DType, device: DeviceSpec, accumulate: DType = DType.FLOAT32) -> float | None:
    """Multiply-adds of an SM in a clock at most; None if the rate of the architecture is unknown."""
    arch = device.arch
    if arch not in _TENSOR or dtype not in _TIMES or (dtype in _FLOAT8 and arch not in _FLOAT8_ARCHS):
        return _OTHERS.get(dtype, {}).get(arch)
    halved = arch in _HALVED and "GeForce" in device.name and accumulate is DType.FLOAT32
    return _TIMES[dtype] * _TENSOR[arch] * (0.5 if halved else 1.0)


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
    rate, clock = L2_BYTES.get(device.arch), mhz or device.clock_mhz
    if not rate or not clock:
        return Limit("l2", None, f"no rate of the L2 is known for {device.arch}")
    us = loaded_bytes(problem, grid) / (rate * device.sm_count * clock)
    return Limit("l2", us, f"{rate} bytes per SM and clock, fitted on an H200")


def launch(device: DeviceSpec, mhz: float | None) -> Limit:
    """The time of a launch that computes nothing."""
    clocks, clock = LAUNCH_CLOCKS.get(device.arch), mhz or device.clock_mhz
    if not clocks or not clock:
        return Limit("launch", None, f"the cost of a launch is not known for {device.arch}")
    return Limit("launch", clocks / clock, f"{clocks} clocks, fitted on an H200")


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
