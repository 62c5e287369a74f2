"""Rules of family ``mma_sync``: what is valid, and what of it is worth a trial."""

from __future__ import annotations

from kernels import cuda, tiling
from kernels.families.mma_sync_knobs import SUMS, Knobs, register_estimate, smem_bytes, step_k
from kernels.family import Rule
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

_MOST_ROW_BYTES = 1024  # of a tile
_CALLED = (DType.INT4, DType.UINT4, DType.SIGN1)
_CALL_REGISTERS = 20


def _why_shares(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % (16 * k.warps_m):
        return f"tile_m must be a multiple of 16 * warps_m = {16 * k.warps_m}"
    if k.tile_n % (8 * k.warps_n):
        return f"tile_n must be a multiple of 8 * warps_n = {8 * k.warps_n}"
    return None


def _why_slices(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    step = step_k(p)
    if k.tile_k % (step * k.warps_k):
        return f"tile_k must be a multiple of {step} * warps_k = {step * k.warps_k}"
    if p.dtype.nbytes(k.tile_k) > _MOST_ROW_BYTES:
        return f"tile_k must be at most {_MOST_ROW_BYTES} bytes of a row"
    if k.threads > 1024:
        return f"{k.threads} threads in a block, at most 1024"
    return None


def _why_blocked(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.smem_layout == "blocked" and not p.layout.b_transposed and k.tile_k % 16:
        return "smem_layout=blocked needs tile_k to be a multiple of 16 where B is stored K x N"
    return None


def _why_fragments(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.dtype is DType.FLOAT64 and k.fragment_load != "direct":
        return "float64 needs fragment_load=direct: ldmatrix deals out 4-byte words"
    if p.dtype.size == 4 and k.fragment_load == "mixed" and not p.layout.b_transposed:
        return "fragment_load=mixed is direct for tfloat32 in layout nn: ldmatrix cannot load its B"
    return None


def _why_mma_k(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.mma_k == 8 and p.dtype.size != 2:
        return f"mma_k=8 is for 16-bit types, not {p.dtype}"
    return None


def _why_copy_bytes(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.copy_bytes < p.dtype.size:
        return f"copy_bytes must be at least the {p.dtype.size} bytes of {p.dtype}"
    return None


def _why_double_buffer(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.double_buffer and (k.stages < 2 or k.tile_k // step_k(p) // k.warps_k % 2):
        return "fragment double buffering needs two stages and an even number of k steps a stage"
    return None


def _why_reload(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.fragment_load == "ldmatrix_reload" and k.double_buffer:
        return "reloading A leaves nothing to double-buffer: use double_buffer=0"
    return None


def _why_accumulate(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.accumulate.startswith(SUMS[p.accumulate]):
        return f"accumulate={k.accumulate} does not sum in {p.accumulate}"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    used = smem_bytes(k, p)
    reason = cuda.why_smem(used, d)
    # NOTE: a block also costs 1 KiB that the system reserves.
    if reason is None and k.min_blocks * (used + 1024) > d.smem_per_unit:
        return f"min_blocks={k.min_blocks} blocks of {used} bytes do not fit {d.smem_per_unit} bytes"
    return reason


def _why_registers(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    needed = register_estimate(k) + (_emulation_registers(k, p) if d.arch == "sm_90" else 0)
    return cuda.why_registers(needed, k.threads, k.min_blocks)


def _emulation_registers(k: Knobs, p: GemmProblem) -> int:
    """What sm_90 takes besides for types that it unpacks (8-bit floats, to float16) or multiplies in a
    subroutine."""
    if p.dtype in cuda.FLOAT8:
        return (k.warp_m + k.warp_n) // 2
    return _CALL_REGISTERS if p.dtype in _CALLED else 0


def _why_depth(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not 64 <= p.dtype.nbytes(k.tile_k) <= 128:
        return "rows of 64 and 128 bytes a stage: shorter ones copy too little, longer ones take stages"
    return None


def _why_slow_loads(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.fragment_load == "direct" and p.dtype.size <= 4:
        return "ldmatrix moves four times as much an instruction as direct loads"
    return None


def _why_odd_warps(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.warp_m > 64 or not 16 <= k.warp_n <= 64:
        return "warp tiles beyond 64 x 64 spill, narrower than 16 columns starve ldmatrix"
    if k.warp_m * k.warp_n < min(1024, k.tile_m * k.tile_n // 2):
        return "warp tiles this small load more than they multiply"
    return None


def _why_few_warps(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.threads < 64 or (k.warps_k > 1 and k.tile_m * k.tile_n > 128 * 128):
        return "a block needs two warps to hide latency; slice-K pays on small tiles only"
    return None


RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_shares),
    Rule(("tile_k", "warps_k", "warps_m", "warps_n"), _why_slices),
    Rule(("tile_k", "smem_layout"), _why_blocked),
    Rule(("fragment_load",), _why_fragments),
    Rule(("mma_k",), _why_mma_k),
    Rule(("copy_bytes",), _why_copy_bytes, compiled=False),
    Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k"), tiling.why_copies),
    Rule(("double_buffer", "stages", "tile_k", "warps_k"), _why_double_buffer),
    Rule(("fragment_load", "double_buffer"), _why_reload),
    Rule(("accumulate",), _why_accumulate, compiled=False),
    Rule(("tile_m", "tile_n", "stages", "smem_layout", "epilogue", "min_blocks"), _why_smem, compiled=False),
    Rule(
        ("warps_m", "warps_n", "warps_k", "double_buffer", "accumulate", "min_blocks"),
        _why_registers,
        compiled=False,
    ),
)

SEARCH_RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_k",), _why_depth),
    Rule(("fragment_load",), _why_slow_loads),
    Rule(("tile_m", "tile_n"), tiling.why_oversized),
    Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_odd_warps),
    Rule(("warps_m", "warps_n", "warps_k"), _why_few_warps),
    Rule(("tile_k", "split_k"), tiling.why_split),
    Rule(("raster", "group"), tiling.why_group),
)
