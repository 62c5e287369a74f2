"""Family ``host``: a blocked C GEMM for the CPU (``csrc/host_gemm.c``), float32 and float64."""

from __future__ import annotations

import itertools

from kernels.families.host_rules import PACKED_B_LIMIT, RULES, VECTOR_UNITS, HostKnobs, thread_counts
from kernels.family import BuildSpec, Family, Knob
from tilewright.artifact import Argument, LaunchPlan, Pointer, Preconditions, Scalar, Serves, Workspace
from tilewright.config import Config
from tilewright.device import DeviceKind, DeviceSpec
from tilewright.problem import Activation, DType, GemmProblem

ENTRY = "host_gemm"
MAX_THREADS = 512

_MULTIPLES_OF_16 = tuple(range(16, 4097, 16))
_CACHE_TILES = ((512, 1024), (512, 512), (256, 512), (128, 512), (128, 128), (64, 128))
_ACTIVATIONS = {Activation.NONE: 0, Activation.RELU: 1, Activation.GELU: 2}
_POINTERS: tuple[Argument, ...] = (
    Pointer("a"),
    Pointer("b"),
    Pointer("c"),
    Pointer("d"),
    Pointer("bias"),
    Pointer("workspace"),
)
_INTEGERS = ("m", "n", "k", "batch", "lda", "ldb", "ldc", "ldd")
_ARGUMENTS = (
    *_POINTERS,
    *(Scalar(name, "int64") for name in _INTEGERS),
    Scalar("alpha", "float64"),
    Scalar("beta", "float64"),
    Scalar("thread", "int32"),
    Scalar("threads", "int32"),
)


class HostFamily(Family[HostKnobs]):
    """Goto's blocked GEMM on vector extensions of the C compiler."""

    name = "host"
    doc = "CPU: packed panels, vector register tile, threads over disjoint cache tiles"
    device_kind: DeviceKind = "host"
    knobs_type = HostKnobs
    knobs = (
        Knob("threads", tuple(range(1, MAX_THREADS + 1)), "threads that share D"),
        Knob("mr", tuple(range(1, 17)), "rows of the register tile", (4, 6, 8, 12, 14)),
        Knob("nv", (1, 2, 3, 4), "vectors in a row of the register tile"),
        Knob("kc", _MULTIPLES_OF_16[:64], "depth of a cache tile", (192, 256, 384)),
        Knob("mc", _MULTIPLES_OF_16[:64], "rows of a cache tile", (64, 128, 256, 512)),
        Knob("nc", _MULTIPLES_OF_16, "columns of a cache tile", (128, 512, 1024)),
        Knob("swizzle", (1, 2, 4, 8), "rows of cache tiles walked side by side", (1, 4)),
        Knob("snake", (0, 1), "turn around at the end of a row of tiles and of k"),
        Knob("stream", ("a", "b"), "operand whose panels stream past a resident panel of the other"),
        Knob("unroll", (1, 2, 4, 8), "k steps per turn of the inner loop", (4,)),
        Knob("prefetch", (0, 4, 8, 16), "k steps fetched ahead, 0 for none", (0, 8)),
    )
    rules = RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CPUs of a known vector unit, float32 and float64."""
        if device.kind != self.device_kind:
            return f"family host runs on the CPU, not on a {device.kind} device"
        if device.arch not in VECTOR_UNITS:
            return f"family host knows the CPUs {', '.join(VECTOR_UNITS)}; this one is {device.arch}"
        if problem.dtype not in (DType.FLOAT32, DType.FLOAT64):
            return f"family host computes float32 and float64, not {problem.dtype}"
        return None

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """The constants that ``csrc/host_config.h`` reads."""
        knobs = self.knob_values(config)
        defines = {
            "DOUBLE": int(problem.dtype is DType.FLOAT64),
            "A_TRANSPOSED": int(problem.layout.a_transposed),
            "B_TRANSPOSED": int(problem.layout.b_transposed),
            "HAS_C": int(problem.has_c),
            "HAS_BIAS": int(problem.has_bias),
            "ACTIVATION": _ACTIVATIONS[problem.activation],
            "STREAM": int(knobs.stream == "b"),
        }
        for name in ("mr", "nv", "mc", "nc", "kc", "unroll", "prefetch", "snake", "swizzle"):
            defines[name.upper()] = getattr(knobs, name)
        return BuildSpec("c", "host_gemm.c", device.arch, ENTRY, tuple(sorted(defines.items())))

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """``threads`` calls of the entry, a packed tile of A and of B for each in the workspace."""
        knobs = self.knob_values(config)
        grid, size = knobs.grid(problem, device), problem.dtype.size
        packed_a = -(-grid.tile_m * knobs.kc * size // 64) * 64
        packed_b = grid.tile_n * knobs.kc * size
        return LaunchPlan(
            format="elf",
            target=device.arch,
            entry=ENTRY,
            block=(knobs.threads, 1, 1),
            grid=grid,
            args=_ARGUMENTS,
            serves=Serves.of(problem),
            workspace=Workspace(fixed_bytes=64 + knobs.threads * (packed_a + packed_b)),
            preconditions=Preconditions(size, size, size),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Large cache tiles first, a packed B that fits the last-level cache, all threads."""
        if self.why_unsupported(problem, device):
            return []
        wide = VECTOR_UNITS[device.arch].registers == 32
        register_tiles = ((12, 2), (8, 3), (14, 2)) if wide else ((6, 2), (4, 3), (4, 2))
        depths = (384, 256) if problem.dtype is DType.FLOAT32 else (256, 192)
        firsts = (self._first(*point, problem, device) for point in itertools.product(register_tiles, depths))
        return [config for config in firsts if config]

    def _first(
        self, register_tile: tuple[int, int], depth: int, problem: GemmProblem, device: DeviceSpec
    ) -> Config | None:
        """The valid config with the most threads and, of those, the largest cache tile."""
        room = device.l2_bytes or PACKED_B_LIMIT
        for threads, cache_tile, snake in itertools.product(thread_counts(device), _CACHE_TILES, (1, 0)):
            knobs = HostKnobs(threads, *register_tile, depth, *cache_tile, 1, snake, "b", 4, 0)
            packed_b = threads * knobs.nc * depth * problem.dtype.size
            if packed_b <= room and self.why_invalid(self.config(knobs), problem, device) is None:
                return self.config(knobs)
        return None


HOST = HostFamily()
