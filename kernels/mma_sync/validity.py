"""Validity rules of family ``mma_sync``: static_asserts of the source (``compiled``) and budgets."""

from __future__ import annotations

from kernels.base.family import Rule
from kernels.common import cuda, tiling
from kernels.mma_sync.config import ACCUMULATE_OF, Knobs
from kernels.mma_sync.layout import (
    ROW_ALIGNMENT,
    copy_bytes,
    emulation_registers,
    register_estimate,
    repacks,
    smem_bytes,
    step_k,
)
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem, Layout

_MOST_ROW_BYTES = 1024  # of a tile


def why_unsupported(problem: GemmProblem, device: DeviceSpec) -> str | None:
    """The reason why no config computes ``problem`` on ``device``, or None."""
    return _why_type(problem, device) or _why_layout(problem) or cuda.why_unsupported(problem, device)


def _why_type(problem: GemmProblem, device: DeviceSpec) -> str | None:
    if problem.dtype is DType.FLOAT32:
        return "mma_sync has no float32: tensor cores round it to tfloat32, which a problem asks for by name"
    if problem.dtype in cuda.FLOAT8 and device.kind == "cuda" and device.compute_capability < (8, 9):
        return f"mma_sync multiplies {problem.dtype} from sm_89 on, not on {device.arch}"
    return None


def _why_layout(problem: GemmProblem) -> str | None:
    if problem.dtype.size == 1 and problem.layout is not Layout.NT:
        return (
            f"mma_sync reads {problem.dtype} in layout nt, not {problem.layout}: "
            "ldmatrix transposes 16-bit elements only"
        )
    return None


def _why_warp_tiles(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.tile_m % (16 * c.warps_m):
        return f"tile_m must be a multiple of 16 * warps_m = {16 * c.warps_m}"
    if c.tile_n % (8 * c.warps_n):
        return f"tile_n must be a multiple of 8 * warps_n = {8 * c.warps_n}"
    return None


def _why_slices(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    step = step_k(p)
    if c.tile_k % (step * c.warps_k):
        return f"tile_k must be a multiple of {step} * warps_k = {step * c.warps_k}"
    if p.dtype.nbytes(c.tile_k) > _MOST_ROW_BYTES:
        return f"tile_k must be at most {_MOST_ROW_BYTES} bytes of a row"
    if c.threads > 1024:
        return f"{c.threads} threads in a CTA, at most 1024"
    return None


def _why_blocked(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.smem_layout == "blocked" and c.tile_n % 16:
        return "smem_layout=blocked needs a tile_n that is a multiple of 16: use plain"
    if c.smem_layout == "blocked" and p.layout is not Layout.NT and c.tile_k % 16:
        return "smem_layout=blocked needs a tile_k that is a multiple of 16 unless the layout is nt"
    return None


def _why_fragments(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if p.dtype is DType.FLOAT64 and c.fragment_load != "direct":
        return "float64 needs fragment_load=direct: ldmatrix distributes 4-byte words"
    if p.dtype.size == 4 and c.fragment_load == "mixed" and p.layout is not Layout.NT:
        return f"fragment_load=mixed repeats another value for tfloat32 in {p.layout}: use direct or ldmatrix"
    return None


def _why_x2(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.fragment_load == "ldmatrix_x2" and not p.layout.b_transposed:
        return f"fragment_load=ldmatrix_x2 repeats another value in {p.layout}: use ldmatrix"
    return None


def _why_copy_step(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    steps = c.tile_k // step_k(p) // c.warps_k
    if c.copy_step and (c.stages < 2 or c.double_buffer or c.copy_step >= steps):
        return "copy_step is a k step of a stage, of several stages, with double_buffer=0"
    return None


def _why_plain(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    for name, (_, chunks) in zip("ab", tiling.operand_tiles(c, p), strict=True):
        across = chunks * 16 // copy_bytes(c, p, name)
        if c.smem_layout == "plain" and c.threads % across:
            return f"{c.threads} threads are not a multiple of the {across} copies of a row of {name}"
    return None


def _why_mma_k(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.mma_k == 8 and p.dtype.size != 2:
        return f"mma_k=8 is for 16-bit types, not {p.dtype}"
    return None


def _why_copy_bytes(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.copy_bytes < p.dtype.size:
        return f"copy_bytes must be at least the {p.dtype.size} bytes of {p.dtype}"
    return None


def _why_repack(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.repack and not any(repacks(c, p, operand) for operand in ("a", "b")):
        return "repack=1 is for rows that are not multiples of 16 bytes: use repack=0"
    if c.repack and c.copy_bytes != ROW_ALIGNMENT:
        return "repack=1 makes rows for the widest copies: use copy_bytes=16"
    return None


def _why_double_buffer(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.double_buffer and (c.stages < 2 or c.tile_k // step_k(p) // c.warps_k % 2):
        return "fragment double buffering needs two stages and an even number of k steps a stage"
    return None


def _why_reload(c: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if c.fragment_load == "ldmatrix_reload" and c.double_buffer:
        return "reloading A leaves nothing to double-buffer: use double_buffer=0"
    return None


def _why_accumulate(c: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not c.accumulate.startswith(ACCUMULATE_OF[p.accumulate]):
        return f"accumulate={c.accumulate} does not accumulate in {p.accumulate}"
    return None


def why_smem(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    """The reason why the CTAs that an SM must hold exceed its shared memory, or None."""
    used = smem_bytes(c, p)
    reason = cuda.why_smem(used, d)
    # NOTE: the system reserves 1 KiB for each CTA.
    if reason is None and c.min_ctas_per_sm * (used + 1024) > d.smem_per_sm:
        return f"min_ctas_per_sm={c.min_ctas_per_sm} CTAs of {used} bytes do not fit {d.smem_per_sm} bytes"
    return reason


def _why_split_flag(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_no_split_flag(smem_bytes(c, p), c.split_k, d)


def why_registers(c: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    """The reason why they exceed its registers, or None."""
    needed = register_estimate(c) + emulation_registers(c, p, d)
    return cuda.why_registers(needed, c.threads, c.min_ctas_per_sm)


RULES: tuple[Rule[Knobs], ...] = (
    Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_warp_tiles),
    Rule(("tile_k", "warps_k", "warps_m", "warps_n"), _why_slices),
    Rule(("tile_n", "tile_k", "smem_layout"), _why_blocked),
    Rule(("fragment_load",), _why_fragments),
    Rule(("fragment_load",), _why_x2),
    Rule(("copy_step", "stages", "double_buffer", "tile_k", "warps_k"), _why_copy_step),
    Rule(
        ("smem_layout", "copy_bytes", "tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "repack"),
        _why_plain,
    ),
    Rule(("mma_k",), _why_mma_k),
    Rule(("copy_bytes",), _why_copy_bytes, compiled=False),
    Rule(("repack", "copy_bytes"), _why_repack, compiled=False),
    Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k"), tiling.why_copies),
    Rule(("double_buffer", "stages", "tile_k", "warps_k"), _why_double_buffer),
    Rule(("fragment_load", "double_buffer"), _why_reload),
    Rule(("accumulate",), _why_accumulate, compiled=False),
    Rule(
        (
            "tile_m",
            "tile_n",
            "tile_k",
            "warps_k",
            "stages",
            "smem_layout",
            "epilogue",
            "min_ctas_per_sm",
        ),
        why_smem,
        compiled=False,
    ),
    Rule(
        ("tile_m", "tile_n", "tile_k", "warps_k", "stages", "smem_layout", "epilogue", "split_k"),
        _why_split_flag,
        compiled=False,
    ),
    Rule(
        (
            "tile_m",
            "tile_n",
            "warps_m",
            "warps_n",
            "warps_k",
            "double_buffer",
            "accumulate",
            "min_ctas_per_sm",
        ),
        why_registers,
        compiled=False,
    ),
)
