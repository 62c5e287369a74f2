"""Family ``wgmma``: TMA and wgmma in one role, sm_90a (``csrc/wgmma.cu``)."""

from __future__ import annotations

import dataclasses
import itertools

from kernels import cuda
from kernels.family import BuildSpec, Family, Knob, Rule
from kernels.outline import Outline
from kernels.raster import AXES
from kernels.wgmma_layout import OperandTile
from tilewright.artifact import Grid, LaunchPlan, Serves, TensorMap
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

ENTRY = "wgmma_gemm"
EPILOGUES = ("direct", "stmatrix")
ALIGNMENT = 16  # bytes that TMA asks of addresses and row strides

# Registers of a thread beside the accumulators: descriptors, addresses, bounds, loop state.
_OTHER_REGISTERS = 40


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    warpgroups: int
    tile_k: int
    stages: int
    epilogue: str
    in_flight: int
    l2_promotion: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 * self.warpgroups


KNOBS = (
    Knob("tile_m", (64, 128, 192, 256), "rows of D a block computes"),
    Knob(
        "tile_n",
        tuple(range(16, 257, 16)),
        "columns of D a block computes, and the N of wgmma",
        (32, 64, 96, 128, 160, 192, 224, 256),
    ),
    Knob("warpgroups", (1, 2, 3, 4), "groups of 128 threads that split the rows"),
    Knob("tile_k", (64, 128), "k of one stage"),
    Knob("stages", (2, 3, 4, 5, 6, 7, 8), "k tiles in shared memory", (3, 4, 5, 6, 8)),
    Knob("epilogue", EPILOGUES, "registers to D"),
    Knob("in_flight", (0, 1), "groups of wgmma left running while the next k tile is awaited"),
    Knob("l2_promotion", (0, 128, 256), "bytes that the L2 fetches for TMA at least", (128, 256)),
    Knob("raster", AXES, "axis along which groups of tiles are laid"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a block-swizzle group", (1, 4, 8, 16)),
)


def operand_tiles(knobs: Knobs, problem: GemmProblem) -> tuple[OperandTile, OperandTile]:
    """The tiles of A and B in one stage."""
    return (
        OperandTile(knobs.tile_m, knobs.tile_k, not problem.layout.a_transposed),
        OperandTile(knobs.tile_n, knobs.tile_k, problem.layout.b_transposed),
    )


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: stages with two barriers each, and what aligning them to 1 KiB may cost.

    The staged D reuses the stages and always fits them.
    """
    stage = sum(tile.bytes for tile in operand_tiles(knobs, problem))
    return knobs.stages * (stage + 16) + 1024


def accumulator_registers(knobs: Knobs, problem: GemmProblem) -> int:
    """Registers of a thread that hold sums: one an element in f32, half of that in f16."""
    elements = knobs.tile_m * knobs.tile_n // knobs.threads
    return elements // 2 if problem.accumulate is DType.FLOAT16 else elements


def register_estimate(knobs: Knobs, problem: GemmProblem) -> int:
    """Registers a thread needs, within a few."""
    sums = accumulator_registers(knobs, problem)
    # NOTE: where the epilogue reads C or a bias, the assembler unpacks all f16 sums ahead of their use.
    reads = problem.has_c or problem.has_bias
    unpacked = sums if reads and problem.accumulate is DType.FLOAT16 else 0
    return sums + unpacked + _OTHER_REGISTERS


def _why_rows(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % (64 * k.warpgroups):
        return f"tile_m must be a multiple of 64 * warpgroups = {64 * k.warpgroups}"
    return None


def _why_columns(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not p.layout.b_transposed and k.tile_n % 64:
        return f"tile_n must be a multiple of 64 where B is stored K x N, got {k.tile_n}"
    return None


def _why_epilogue(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.epilogue == "stmatrix" and p.out.size != 2:
        return f"stmatrix stores 16-bit elements, D is {p.out}; use epilogue=direct"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    return cuda.why_smem(smem_bytes(k, p), d)


def _why_registers(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    return cuda.why_registers(register_estimate(k, p), k.threads)


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if (k.tile_m > 64 and k.tile_m >= 2 * p.m) or (k.tile_n > 64 and k.tile_n >= 2 * p.n):
        return "more than half of the tile would lie outside D"
    return None


def _why_short(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.stages > 3 and k.stages * k.tile_k >= 2 * p.k:
        return "more than half of the stages would stay empty"
    return None


def _why_group(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    along = -(-p.m // k.tile_m) if k.raster == "m" else -(-p.n // k.tile_n)
    if k.group > 1 and k.group >= 2 * along:
        return "the group is wider than the grid of tiles"
    return None


class Wgmma(Family[Knobs]):
    """TMA into a ring of shared-memory stages, then wgmma by every warpgroup."""

    name = "wgmma"
    doc = "warpgroup tensor cores fed by TMA: sm_90, f16 and bf16, all layouts, rows of 16-byte multiples"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = (
        Rule(("tile_m", "warpgroups"), _why_rows),
        Rule(("tile_n",), _why_columns),
        Rule(("epilogue",), _why_epilogue),
        Rule(("tile_m", "tile_n", "tile_k", "stages"), _why_smem, compiled=False),
        Rule(("tile_m", "tile_n", "warpgroups"), _why_registers, compiled=False),
    )
    search_rules = (
        Rule(("tile_m", "tile_n"), _why_oversized),
        Rule(("tile_k", "stages"), _why_short),
        Rule(("raster", "group"), _why_group),
    )

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """sm_90, f16 or bf16, rows of A and B that TMA can describe."""
        reason = cuda.why_unsupported(problem, device)
        if reason:
            return reason
        if device.arch != "sm_90":
            return f"wgmma exists on sm_90 alone, not on {device.arch}"
        if problem.dtype.size != 2:
            return f"wgmma multiplies float16 and bfloat16, not {problem.dtype}"
        for operand in ("a", "b"):
            if problem.stride_alignment(operand) < ALIGNMENT:
                return f"TMA needs rows of {operand} that are multiples of {ALIGNMENT} bytes: pad them"
        return None

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``wgmma.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, _grid(k), k.raster, k.group)
        defines |= {
            name.upper(): getattr(k, name) for name in ("tile_k", "warpgroups", "stages", "in_flight")
        }
        defines |= {
            "ACCUMULATE": int(problem.accumulate is DType.FLOAT16),
            "EPILOGUE": EPILOGUES.index(k.epilogue),
        }
        return cuda.build_spec("wgmma.cu", ENTRY, defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Blocks of all warpgroups, one a tile, with a tensor map each of A and B."""
        k = self.knob_values(config)
        a, b = operand_tiles(k, problem)
        maps = (
            TensorMap("a", a.box, promotion=k.l2_promotion),
            TensorMap("b", b.box, promotion=k.l2_promotion),
        )
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry=ENTRY,
            block=(k.threads, 1, 1),
            grid=_grid(k),
            args=(*maps, *cuda.gemm_arguments(problem)),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            programmatic=True,
            preconditions=cuda.preconditions(problem, ALIGNMENT, ALIGNMENT),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Shapes that do well elsewhere, ranked by wave efficiency and operand reuse."""
        candidates = [_pick(problem, *shape) for shape in _SHAPES]
        valid = [k for k in candidates if self.why_invalid(self.config(k), problem, device) is None]
        valid.sort(key=lambda k: -_promise(k, problem, device))
        return [self.config(k) for k in valid[:8]]

    def imitations(self, outline: Outline, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The tile as told, or its mirror image, with as many stages as fit; none where k is split."""
        if outline.split_k > 1:
            return []
        for told in outline.alike[:2]:  # the others differ in clusters, which it does not know
            shapes = itertools.product((1, 2, 3, 4), (64, 128), (2, 3, 4, 5, 6, 7, 8))
            candidates = [_pick(problem, told.tile_m, told.tile_n, *shape) for shape in shapes]
            valid = [k for k in candidates if self.why_invalid(self.config(k), problem, device) is None]
            if valid:
                best = max(valid, key=lambda k: (k.tile_k == told.tile_k, -abs(k.warpgroups - 2), k.stages))
                return [self.config(best)]
        return []


# tile_m, tile_n, warpgroups, tile_k, stages
_SHAPES = (
    (128, 256, 2, 64, 4),
    (256, 128, 2, 64, 4),
    (192, 160, 3, 64, 4),
    (128, 192, 2, 64, 4),
    (128, 128, 2, 64, 6),
    (128, 128, 1, 64, 3),
    (64, 256, 1, 64, 5),
    (128, 64, 1, 64, 4),
    (64, 128, 1, 64, 4),
    (64, 64, 1, 128, 6),
    (64, 32, 1, 128, 8),
)


def _pick(problem: GemmProblem, *shape: int) -> Knobs:
    tile_m, tile_n, warpgroups, tile_k, stages = shape
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warpgroups=warpgroups,
        tile_k=tile_k,
        stages=stages,
        epilogue="stmatrix" if problem.out.size == 2 else "direct",
        in_flight=1,
        l2_promotion=256,
        raster="m",
        group=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


def _promise(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    reuse = k.tile_m * k.tile_n / (k.tile_m + k.tile_n)
    return cuda.wave_efficiency(problem, _grid(k), device) * reuse / (reuse + 32)


def _grid(k: Knobs) -> Grid:
    return Grid(k.tile_m, k.tile_n)


WGMMA = Wgmma()
