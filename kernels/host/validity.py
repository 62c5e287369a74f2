"""Rules of family ``host``.

Rules that depend only on the config, the type and the vector unit mirror ``kernels/host/config.h``; the
others refuse configs that waste threads or memory.
"""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.host.config import VECTOR_UNITS, Knobs, thread_counts
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

PACKED_B_LIMIT = 8 << 20
_PACKED_A_LIMIT = 2 << 20
_SMALL_TILE = 256
_ENOUGH_FLOPS = 1 << 28


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no config computes ``problem`` on ``device``, or None."""
    if device.kind != "host":
        return f"family host runs on the CPU, not on a {device.kind} device"
    if device.arch not in VECTOR_UNITS:
        return f"family host knows the CPUs {', '.join(VECTOR_UNITS)}; this one is {device.arch}"
    if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return f"family host computes float32 and float64, not {problem.dtype}"
    return None


def _why_registers(knobs: Knobs, _: GemmProblem, device: DeviceSpec) -> str | None:
    have = VECTOR_UNITS[device.arch].registers
    needed = knobs.mr * knobs.nv + knobs.nv + 1
    if needed > have:
        return f"the register tile, a row of B and one element of A need {needed} of {have} vector registers"
    if 2 * knobs.mr * knobs.nv < have:
        return (
            f"a register tile below half of the {have} vector registers cannot hide the latency of its FMAs"
        )
    return None


def _why_packed_a(knobs: Knobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    size = knobs.mc * knobs.kc * problem.dtype.size
    return f"the packed A tile of {size} bytes exceeds {_PACKED_A_LIMIT}" if size > _PACKED_A_LIMIT else None


def _why_packed_b(knobs: Knobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    size = knobs.nc * knobs.kc * problem.dtype.size
    return f"the packed B tile of {size} bytes exceeds {PACKED_B_LIMIT}" if size > PACKED_B_LIMIT else None


def _why_threads(knobs: Knobs, _: GemmProblem, device: DeviceSpec) -> str | None:
    if knobs.threads in thread_counts(device):
        return None
    return f"threads must be the device's {device.sm_count}, halved any number of times; got {knobs.threads}"


def _why_balance(knobs: Knobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    tiles = knobs.grid(problem, device).tiles(problem) * problem.batch
    if _is_balanced(tiles, knobs.threads):
        return None
    return f"{tiles} cache tiles leave more than a third of the time of {knobs.threads} threads idle"


def _is_balanced(tiles: int, threads: int) -> bool:
    slots = -(-tiles // threads) * threads
    return 2 * slots <= 3 * tiles


def _why_workers(knobs: Knobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    if 2 * knobs.threads >= device.sm_count or problem.flops <= knobs.threads * _ENOUGH_FLOPS:
        return None
    tiles = knobs.grid(problem, device).tiles(problem) * problem.batch
    if not any(_is_balanced(tiles, more) for more in thread_counts(device) if more > knobs.threads):
        return None
    return f"{knobs.threads} of {device.sm_count} threads would do more than {_ENOUGH_FLOPS} operations each"


def _why_extents(knobs: Knobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    tile, extents = (knobs.mc, knobs.nc, knobs.kc), (problem.m, problem.n, problem.k)
    for name, value, extent in zip(("mc", "nc", "kc"), tile, extents, strict=True):
        if value > max(_SMALL_TILE, 2 * extent):
            return f"{name}={value} is more than twice the problem's {extent}: a smaller one does the same"
    return None


def _why_swizzle(knobs: Knobs, problem: GemmProblem, _: DeviceSpec) -> str | None:
    rows = -(-problem.m // knobs.tile_rows())
    if knobs.swizzle == 1 or rows >= knobs.swizzle:
        return None
    return f"swizzle={knobs.swizzle} exceeds the {rows} rows of cache tiles"


def _why_snake(knobs: Knobs, problem: GemmProblem, device: DeviceSpec) -> str | None:
    tiles = knobs.grid(problem, device).tiles(problem) * problem.batch
    if knobs.snake == 0 or tiles > knobs.threads:
        return None
    return "snake=1 needs a thread with two cache tiles"


RULES = (
    Rule(("mr", "nv"), _why_registers),
    Rule(("mc", "kc"), _why_packed_a),
    Rule(("nc", "kc"), _why_packed_b),
    Rule(("threads",), _why_threads),
    Rule(("mc", "nc", "kc"), _why_extents),
    Rule(("threads", "mr", "nv", "mc", "nc"), _why_workers),
    Rule(("threads", "mr", "nv", "mc", "nc"), _why_balance),
    Rule(("mr", "mc", "swizzle"), _why_swizzle),
    Rule(("threads", "mr", "nv", "mc", "nc", "snake"), _why_snake),
)
