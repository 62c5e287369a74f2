"""Family ``mma_sync``: tensor cores through mma.sync, sm_80 and later (``csrc/mma_sync.cu``)."""

from __future__ import annotations

import dataclasses

from kernels import cuda
from kernels.family import BuildSpec, Family, Knob, Rule
from kernels.raster import RASTERS
from kernels.smem_layout import LAYOUTS, tile_bytes
from tilewright.artifact import Grid, LaunchPlan, Serves, Workspace
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

FRAGMENT_LOADS = ("direct", "ldmatrix", "mixed", "ldmatrix_reload")
# By value of ACCUMULATE, which leaves the type to the operands.
ACCUMULATES = {"f32": 0, "f16": 1, "f32_outside": 2, "s32": 0, "f64": 0}
EPILOGUES = ("direct", "smem")

_SUMS = {DType.FLOAT32: "f32", DType.FLOAT16: "f16", DType.INT32: "s32", DType.FLOAT64: "f64"}
_FLOAT8 = (DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2)
_STEP_BYTES = 32  # of a row of A that one k step multiplies
_MAX_ROW_BYTES = 2**31

# Registers of a thread beside accumulators and fragments: addresses, bounds, loop state.
_OTHER_REGISTERS = 40


@dataclasses.dataclass(slots=True)
class Knobs:
    """See :data:`KNOBS`."""

    tile_m: int
    tile_n: int
    warps_m: int
    warps_n: int
    tile_k: int
    warps_k: int
    stages: int
    smem_layout: str
    fragment_load: str
    double_buffer: int
    mma_k: int
    accumulate: str
    epilogue: str
    min_blocks: int
    copy_bytes: int
    snake: int
    split_k: int
    raster: str
    group: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def warp_m(self) -> int:
        """Rows of D that a warp computes."""
        return self.tile_m // self.warps_m

    @property
    def warp_n(self) -> int:
        """Columns of D that a warp computes."""
        return self.tile_n // self.warps_n


KNOBS = (
    Knob(
        "tile_m",
        (16, 32, 64, 96, 128, 192, 256),
        "rows of D a block computes",
        (16, 32, 64, 128, 256),
    ),
    Knob(
        "tile_n",
        (16, 32, 64, 96, 128, 160, 192, 256),
        "columns of D a block computes",
        (32, 64, 96, 128, 192, 256),
    ),
    Knob("warps_m", (1, 2, 4, 8), "warps along m", (1, 2, 4)),
    Knob("warps_n", (1, 2, 4, 8), "warps along n", (1, 2, 4)),
    Knob("tile_k", (8, 16, 32, 64, 128), "k of one stage, in elements"),
    Knob("warps_k", (1, 2, 4), "groups of warps that slice each k tile", (1, 2)),
    Knob("stages", (1, 2, 3, 4, 5, 6), "k tiles in shared memory; 1 loads synchronously", (2, 3, 4, 5)),
    Knob("smem_layout", LAYOUTS, "arrangement of the tiles in shared memory", ("xor", "permuted")),
    Knob("fragment_load", FRAGMENT_LOADS, "shared memory to registers", ("direct", "ldmatrix", "mixed")),
    Knob("double_buffer", (0, 1), "load the next k step's fragments while this one multiplies"),
    Knob("mma_k", (8, 16), "m16n8k8 or m16n8k16; types that are not 16 bits wide take 16", (16,)),
    Knob(
        "accumulate",
        tuple(ACCUMULATES),
        "type and place of the running sum; f32_outside adds each mma's products in registers",
        ("f32", "f16", "s32", "f64"),
    ),
    Knob("epilogue", EPILOGUES, "registers to D"),
    Knob("min_blocks", (1, 2, 3, 4), "blocks a multiprocessor must hold", (1, 2)),
    Knob("copy_bytes", (2, 4, 8, 16), "widest global load", (16,)),
    Knob("snake", (0, 1), "odd rows of mma tiles run backwards through n"),
    Knob("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 32), "blocks that share a tile", (1, 2, 4, 8)),
    Knob("raster", RASTERS, "axis along which groups of tiles are laid"),
    Knob("group", (1, 2, 4, 8, 16), "tiles of a block-swizzle group", (1, 4, 8)),
)


def operand_tiles(knobs: Knobs, problem: GemmProblem) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, 16-byte chunks of a row) of the A tile and of the B tile."""
    depth = knobs.tile_k * problem.dtype.size // 16
    a = (knobs.tile_m, depth)
    if problem.layout.b_transposed:
        return a, (knobs.tile_n, depth)
    return a, (knobs.tile_k, knobs.tile_n * problem.dtype.size // 16)


def smem_bytes(knobs: Knobs, problem: GemmProblem) -> int:
    """Dynamic shared memory: the stages, reused by the slice-K reduction and the epilogue."""
    stage = sum(tile_bytes(knobs.smem_layout, *tile) for tile in operand_tiles(knobs, problem))
    reduction = knobs.tile_m * knobs.tile_n * cuda.real_bytes(problem) if knobs.warps_k > 1 else 0
    staged = knobs.tile_m * knobs.tile_n * problem.out.size if knobs.epilogue == "smem" else 0
    return max(knobs.stages * stage, reduction, staged)


def register_estimate(knobs: Knobs) -> int:
    """Registers a thread needs, within a few: accumulators, fragments, everything else."""
    bits = {"f16": 16, "f64": 64}.get(knobs.accumulate, 32)
    accumulators = knobs.warp_m * knobs.warp_n * bits // 1024
    fragments = (1 + knobs.double_buffer) * (knobs.warp_m + knobs.warp_n) // 4
    return accumulators + fragments + _OTHER_REGISTERS


def _why_shares(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.tile_m % (16 * k.warps_m):
        return f"tile_m must be a multiple of 16 * warps_m = {16 * k.warps_m}"
    if k.tile_n % (8 * k.warps_n):
        return f"tile_n must be a multiple of 8 * warps_n = {8 * k.warps_n}"
    return None


def _why_slices(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    step = _step_k(p)
    if k.tile_k % (step * k.warps_k):
        return f"tile_k must be a multiple of {step} * warps_k = {step * k.warps_k}"
    if k.threads > 1024:
        return f"{k.threads} threads in a block, at most 1024"
    return None


def _why_copies(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    for name, (_, chunks) in zip("AB", operand_tiles(k, p), strict=True):
        if k.threads % chunks:
            return (
                f"{k.threads} threads are not a multiple of the {chunks} chunks of a row of the {name} tile"
            )
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
    if k.double_buffer and (k.stages < 2 or k.tile_k // _step_k(p) // k.warps_k % 2):
        return "fragment double buffering needs two stages and an even number of k steps a stage"
    return None


def _why_reload(k: Knobs, _p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.fragment_load == "ldmatrix_reload" and k.double_buffer:
        return "reloading A leaves nothing to double-buffer: use double_buffer=0"
    return None


def _why_accumulate(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not k.accumulate.startswith(_SUMS[p.accumulate]):
        return f"accumulate={k.accumulate} does not sum in {p.accumulate}"
    return None


def _why_smem(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    used = smem_bytes(k, p)
    # NOTE: a block also costs 1 KiB that the system reserves.
    if used > d.smem_per_block:
        return f"{used} bytes of shared memory, a block may use {d.smem_per_block}"
    if k.min_blocks * (used + 1024) > d.smem_per_unit:
        return f"min_blocks={k.min_blocks} blocks of {used} bytes do not fit {d.smem_per_unit} bytes"
    return None


def _why_registers(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    limit = min(255, 65536 // (k.threads * k.min_blocks) // 8 * 8)
    # NOTE: sm_90 unpacks 8-bit floats to float16 before it multiplies them.
    unpacked = (k.warp_m + k.warp_n) // 2 if p.dtype in _FLOAT8 and d.arch == "sm_90" else 0
    needed = register_estimate(k) + unpacked
    if needed > limit:
        return f"about {needed} registers a thread, {k.min_blocks} x {k.threads} threads leave {limit}"
    return None


def _why_depth(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if not 64 <= k.tile_k * p.dtype.size <= 128:
        return "rows of 64 and 128 bytes a stage: shorter ones copy too little, longer ones take stages"
    return None


def _why_slow_loads(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if k.fragment_load == "direct" and p.dtype.size <= 4:
        return "ldmatrix moves four times as much an instruction as direct loads"
    return None


def _why_oversized(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    if (k.tile_m > 16 and k.tile_m >= 2 * p.m) or (k.tile_n > 32 and k.tile_n >= 2 * p.n):
        return "more than half of the tile would lie outside D"
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


def _why_split(k: Knobs, p: GemmProblem, d: DeviceSpec) -> str | None:
    if k.split_k == 1:
        return None
    tiles = Grid(k.tile_m, k.tile_n).tiles(p) * p.batch
    if tiles * (k.split_k - 1) >= 2 * d.units or p.k < 4 * k.split_k * k.tile_k:
        return "split-K pays only where tiles leave multiprocessors idle and k is long"
    return None


def _why_group(k: Knobs, p: GemmProblem, _d: DeviceSpec) -> str | None:
    along = -(-p.m // k.tile_m) if k.raster == "m" else -(-p.n // k.tile_n)
    if k.group > 1 and k.group >= 2 * along:
        return "the group is wider than the grid of tiles"
    return None


class MmaSync(Family[Knobs]):
    """cp.async into a ring of shared-memory stages, then mma.sync."""

    name = "mma_sync"
    doc = (
        "tensor cores through mma.sync: sm_80 and later, every type but float32, layouts nt and nn "
        "(8-bit types nt only), any size"
    )
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = (
        Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_shares),
        Rule(("tile_k", "warps_k", "warps_m", "warps_n"), _why_slices),
        Rule(("tile_k", "smem_layout"), _why_blocked),
        Rule(("fragment_load",), _why_fragments),
        Rule(("mma_k",), _why_mma_k),
        Rule(("copy_bytes",), _why_copy_bytes, compiled=False),
        Rule(("tile_m", "tile_n", "tile_k", "warps_m", "warps_n", "warps_k"), _why_copies),
        Rule(("double_buffer", "stages", "tile_k", "warps_k"), _why_double_buffer),
        Rule(("fragment_load", "double_buffer"), _why_reload),
        Rule(("accumulate",), _why_accumulate, compiled=False),
        Rule(
            ("tile_m", "tile_n", "stages", "smem_layout", "epilogue", "min_blocks"), _why_smem, compiled=False
        ),
        Rule(
            ("warps_m", "warps_n", "warps_k", "double_buffer", "accumulate", "min_blocks"),
            _why_registers,
            compiled=False,
        ),
    )
    search_rules = (
        Rule(("tile_k",), _why_depth),
        Rule(("fragment_load",), _why_slow_loads),
        Rule(("tile_m", "tile_n"), _why_oversized),
        Rule(("tile_m", "tile_n", "warps_m", "warps_n"), _why_odd_warps),
        Rule(("warps_m", "warps_n", "warps_k"), _why_few_warps),
        Rule(("tile_k", "split_k"), _why_split),
        Rule(("raster", "group"), _why_group),
    )

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CUDA, a type that the architecture's tensor cores multiply, A stored M x K."""
        return _why_type(problem, device) or _why_layout(problem) or cuda.why_unsupported(problem, device)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``mma_sync.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, _grid(k), k.raster, k.group)
        defines |= {name.upper(): getattr(k, name) for name in ("tile_k", "warps_m", "warps_n", "warps_k")}
        defines |= {name.upper(): getattr(k, name) for name in ("stages", "mma_k", "double_buffer", "snake")}
        defines |= {
            "FRAGMENT_LOAD": FRAGMENT_LOADS.index(k.fragment_load),
            "SMEM_LAYOUT": LAYOUTS.index(k.smem_layout),
            "ACCUMULATE": ACCUMULATES[k.accumulate],
            "EPILOGUE": EPILOGUES.index(k.epilogue),
            "COPY_A": _copy_bytes(k, problem, "a"),
            "COPY_B": _copy_bytes(k, problem, "b"),
            "MIN_BLOCKS": k.min_blocks,
        }
        return BuildSpec("cuda", "mma_sync.cu", cuda.TARGETS[device.arch], "mma_sync", cuda.as_pairs(defines))

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Blocks of all warps, one a tile and split."""
        k = self.knob_values(config)
        partials = k.split_k * k.tile_m * k.tile_n * cuda.real_bytes(problem)
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="mma_sync",
            block=(k.threads, 1, 1),
            grid=_grid(k),
            args=cuda.gemm_arguments(problem),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            workspace=Workspace(4, partials) if k.split_k > 1 else Workspace(),
            preconditions=cuda.preconditions(
                problem, _copy_bytes(k, problem, "a"), _copy_bytes(k, problem, "b")
            ),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Shapes that do well elsewhere, ranked by wave efficiency and operand reuse."""
        candidates = [_pick(problem, device, *shape) for shape in _SHAPES]
        valid = [k for k in candidates if self.why_invalid(self.config(k), problem, device) is None]
        valid.sort(key=lambda k: -_promise(k, problem, device))
        return [self.config(k) for k in valid[:8]]


def _why_type(problem: GemmProblem, device: DeviceSpec) -> str | None:
    if problem.dtype is DType.FLOAT32:
        return "mma_sync has no float32: tensor cores round it to tfloat32, which a problem asks for by name"
    if problem.dtype in _FLOAT8 and device.kind == "cuda" and device.compute_capability < (8, 9):
        return f"mma_sync multiplies {problem.dtype} from sm_89 on, not on {device.arch}"
    return None


def _why_layout(problem: GemmProblem) -> str | None:
    if problem.layout.a_transposed:
        return f"mma_sync reads A as M x K: layouts nt and nn, not {problem.layout}"
    if problem.dtype.size == 1 and not problem.layout.b_transposed:
        return (
            f"mma_sync reads {problem.dtype} B as N x K (layout nt), not {problem.layout}: "
            "ldmatrix transposes 16-bit elements only"
        )
    if max(problem.n, problem.k) * problem.dtype.size >= _MAX_ROW_BYTES:
        return "mma_sync reads rows of less than 2 GiB"
    return None


# tile_m, tile_n, tile_k of 16-bit elements, warps_m, warps_n, stages
_SHAPES = (
    (128, 256, 32, 2, 4, 4),
    (256, 128, 32, 4, 2, 4),
    (128, 128, 32, 2, 2, 4),
    (128, 128, 64, 2, 2, 3),
    (128, 128, 64, 4, 2, 3),
    (128, 256, 64, 2, 4, 3),
    (256, 128, 64, 4, 2, 3),
    (128, 64, 64, 2, 2, 3),
    (64, 128, 64, 2, 2, 4),
    (64, 64, 64, 2, 2, 4),
    (32, 128, 64, 1, 4, 4),
    (32, 64, 64, 1, 2, 5),
    (16, 128, 64, 1, 4, 5),
    (16, 64, 64, 1, 2, 5),
)


def _pick(problem: GemmProblem, device: DeviceSpec, *shape: int) -> Knobs:
    tile_m, tile_n, depth, warps_m, warps_n, stages = shape
    tile_k = depth * 2 // problem.dtype.size
    tiles = Grid(tile_m, tile_n).tiles(problem) * problem.batch
    fills = [s for s in (1, 2, 4, 8) if tiles * s <= device.units and problem.k >= 4 * s * tile_k]
    return Knobs(
        tile_m=tile_m,
        tile_n=tile_n,
        warps_m=warps_m,
        warps_n=warps_n,
        tile_k=tile_k,
        warps_k=1,
        stages=stages,
        smem_layout="xor",
        fragment_load="direct" if problem.dtype is DType.FLOAT64 else "ldmatrix",
        double_buffer=1,
        mma_k=16,
        accumulate=_SUMS[problem.accumulate],
        epilogue="smem",
        min_blocks=1,
        copy_bytes=16,
        snake=1,
        split_k=fills[-1] if fills else 1,
        raster="m",
        group=8 if -(-problem.m // tile_m) >= 8 else 1,
    )


def _promise(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> float:
    reuse = k.tile_m * k.tile_n / (k.tile_m + k.tile_n)
    return cuda.wave_efficiency(problem, _grid(k), device) * reuse / (reuse + 32)


def _step_k(problem: GemmProblem) -> int:
    return _STEP_BYTES // problem.dtype.size


def _grid(k: Knobs) -> Grid:
    return Grid(k.tile_m, k.tile_n, k.split_k)


def _copy_bytes(k: Knobs, problem: GemmProblem, operand: str) -> int:
    return min(k.copy_bytes, problem.stride_alignment(operand))


MMA_SYNC = MmaSync()
