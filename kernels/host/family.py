"""Family ``host``: a blocked C GEMM for the CPU (``kernels/host/kernel.c``), float32 and float64."""

from __future__ import annotations

import itertools

from kernels.base.family import Family
from kernels.base.knobs import defines
from kernels.base.spec import BuildSpec
from kernels.host import validity
from kernels.host.config import VECTOR_UNITS, Knobs, thread_counts
from tilewright.artifact import Argument, LaunchPlan, Pointer, Preconditions, Scalar, Serves, Workspace
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceKind, DeviceSpec
from tilewright.schema.problem import Activation, DType, GemmProblem

ENTRY = "host_gemm"
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


class HostFamily(Family[Knobs]):
    """Goto's blocked GEMM on vector extensions of the C compiler."""

    name = "host"
    doc = "CPU: packed panels, vector register tile, threads over disjoint cache tiles"
    device_kind: DeviceKind = "host"
    source = "host/kernel.c"
    knobs_type = Knobs
    rules = validity.RULES
    why_unsupported = staticmethod(validity.why_unsupported)

    def uses_tensor_cores(self, _config: Config) -> bool:
        """No config does."""
        return False

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """The constants that ``kernels/host/config.h`` reads."""
        knobs = self.knob_values(config)
        macros = {
            "DOUBLE": int(problem.dtype is DType.FLOAT64),
            "A_TRANSPOSED": int(problem.layout.a_transposed),
            "B_TRANSPOSED": int(problem.layout.b_transposed),
            "HAS_C": int(problem.has_c),
            "HAS_BIAS": int(problem.has_bias),
            "ACTIVATION": _ACTIVATIONS[problem.activation],
        }
        macros |= defines(self.knobs, knobs)
        return BuildSpec(self.language, self.source, device.arch, ENTRY, tuple(sorted(macros.items())))

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

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Valid configs to try first: large cache tiles, B packed into the last-level cache, all threads."""
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
        room = device.l2_bytes or validity.PACKED_B_LIMIT
        for threads, cache_tile, snake in itertools.product(thread_counts(device), _CACHE_TILES, (1, 0)):
            knobs = Knobs(threads, *register_tile, depth, *cache_tile, 1, snake, "b", 4, 0)
            packed_b = threads * knobs.nc * depth * problem.dtype.size
            if packed_b <= room and self.why_invalid(self.config(knobs), problem, device) is None:
                return self.config(knobs)
        return None


HOST = HostFamily()
