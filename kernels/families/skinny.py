"""Family ``skinny``: M or N of at most 16, as fast as the large operand can be read (``csrc/skinny.cu``).

The *weights* are the operand with many rows, the *thin* operand has few; *wide* is the axis of D along the
weights' rows. Rows of the weights run *along* k (B stored N x K, A stored M x K) or *across* it.
"""

from __future__ import annotations

import dataclasses

from kernels import cuda
from kernels.families.skinny_knobs import (
    KNOBS,
    MATHS,
    MOST_THIN,
    RELEASES,
    SPLITS,
    WEIGHT_CACHES,
    Knobs,
    Shape,
    finish_workspace,
)
from kernels.families.skinny_rules import RULES, SEARCH_RULES
from kernels.family import BuildSpec, Family
from tilewright.artifact import Grid, LaunchPlan, Serves
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

_PICKS = 6
_PREFETCHED = 2  # slots
_RESIDENT_THREADS = 512  # of a multiprocessor, at 128 registers a thread


# Knobs whose values are those of the macros of the same name.
_AS_THEY_ARE = (
    "warp_tiles", "warps_wide", "warps_k", "steps", "slots", "min_blocks", "l2_fetch", "prefetch",
)  # fmt: skip


def grid(k: Knobs, shape: Shape) -> Grid:
    """One block a tile and split."""
    wide, thin = shape.tile_wide(k), shape.tile_thin(k)
    return Grid(wide, thin, k.split_k) if shape.weights == "a" else Grid(thin, wide, k.split_k)


class Skinny(Family[Knobs]):
    """Weights from global memory straight to registers; sums over k meet in shared memory."""

    name = "skinny"
    doc = "m or n up to 16: the long operand read once at memory speed; sm_80 and later, any type and size"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = RULES
    search_rules = SEARCH_RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """CUDA, M or N at most 16, and no float16 accumulation, which would lose digits for no time."""
        if min(problem.m, problem.n) > MOST_THIN:
            return f"skinny is for m or n up to {MOST_THIN}, not {problem.m} x {problem.n}"
        if problem.accumulate is DType.FLOAT16:
            return "skinny accumulates in float32, float64 or int32, not float16"
        return cuda.why_unsupported(problem, device)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``skinny.cu``."""
        k, shape = self.knob_values(config), Shape.of(problem)
        defines = cuda.gemm_defines(problem, grid(k, shape), "m", 1)
        defines |= {name.upper(): getattr(k, name) for name in _AS_THEY_ARE}
        defines |= {
            "TILE_K": shape.tile_k(k),
            "WEIGHTS_A": int(shape.weights == "a"),
            "MATH": MATHS.index(k.math),
            "WEIGHT_CACHE": WEIGHT_CACHES.index(k.weight_cache),
            "RELEASE": RELEASES.index(k.release),
            "ALIGN_WEIGHTS": problem.stride_alignment(shape.weights),
            "ALIGN_THIN": problem.stride_alignment(shape.thin),
        }
        return cuda.build_spec("skinny.cu", "skinny", defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Blocks of all warps, one a tile and split."""
        k, shape = self.knob_values(config), Shape.of(problem)
        tile = shape.tile_wide(k) * shape.tile_thin(k)
        aligned = {side: problem.stride_alignment(side) for side in ("a", "b")}
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="skinny",
            block=(k.threads, 1, 1),
            grid=grid(k, shape),
            args=cuda.gemm_arguments(problem),
            serves=Serves.of(problem),
            programmatic=device.arch == "sm_90",
            workspace=finish_workspace(problem, tile, k.threads, k.split_k),
            preconditions=cuda.preconditions(problem, aligned["a"], aligned["b"]),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Loads enough in flight to cover the memory's latency, blocks enough to fill the device once."""
        if self.why_unsupported(problem, device):
            return []
        structures = _ALONG if Shape.of(problem).along else _ACROSS
        knobs = [_filled(structure, problem, device) for structure in structures]
        configs = [self.config(one) for one in knobs]
        return [one for one in configs if self.why_invalid(one, problem, device) is None][:_PICKS]


# warp_tiles, warps_wide, warps_k, steps, slots, min_blocks: 4 to 8 KiB of weights in flight a warp, 64 to
# 128 KiB a multiprocessor. Those for types and alignments that need more registers come last.
_ALONG = (
    (1, 1, 8, 2, 2, 2),
    (1, 2, 4, 4, 1, 2),
    (1, 4, 2, 4, 2, 2),
    (1, 1, 4, 4, 2, 4),
    (2, 2, 4, 2, 1, 2),
    (1, 1, 16, 4, 1, 1),
    (1, 1, 4, 2, 2, 3),
    (1, 1, 4, 2, 2, 2),
    (1, 1, 4, 2, 1, 2),
    (1, 1, 1, 1, 2, 1),
)
_ACROSS = (
    (1, 2, 4, 1, 3, 1),
    (1, 2, 2, 1, 3, 3),
    (1, 1, 4, 2, 2, 2),
    (1, 4, 1, 1, 4, 2),
    (1, 1, 4, 2, 1, 2),
    (1, 1, 4, 1, 1, 1),
    (1, 1, 1, 1, 1, 1),
)


def _filled(structure: tuple[int, ...], problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """The structure with mma or, where that is illegal, fma; split over k until the device is full."""
    shape = Shape.of(problem)
    math = "mma" if shape.why_no_mma(device) is None else "fma"
    warp_tiles, warps_wide, warps_k, steps, slots, min_blocks = structure
    if math == "fma":
        min_blocks = 1
    knobs = Knobs(
        math, warp_tiles, warps_wide, warps_k, steps, slots, min_blocks, split_k=1,
        weight_cache="no_allocate", l2_fetch=128, prefetch=0, release="started",
    )  # fmt: skip
    tiles = grid(knobs, shape).tiles(problem) * problem.batch
    wanted = device.units * max(knobs.min_blocks, _RESIDENT_THREADS // knobs.threads) // tiles
    turns = problem.k // (shape.tile_k(knobs) * knobs.warps_k * knobs.slots)
    legal = [s for s in SPLITS if s <= max(1, min(wanted, turns))]
    knobs = dataclasses.replace(knobs, split_k=legal[-1])
    return _overlapped(knobs, tiles * knobs.split_k, problem, device)


def _overlapped(knobs: Knobs, blocks: int, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """What is worth it to start before the kernel before has ended; blocks that are all at work at once
    leave room for those of the next kernel too early."""
    if device.arch != "sm_90":
        return knobs
    at_once = blocks <= device.units * _RESIDENT_THREADS // knobs.threads
    late = dataclasses.replace(knobs, release="loaded" if at_once else "started")
    early = dataclasses.replace(late, prefetch=_PREFETCHED)
    rules = (*RULES, *SEARCH_RULES)
    fitting = (k for k in (early, late) if not any(rule.why(k, problem, device) for rule in rules))
    return next(fitting, knobs)


SKINNY = Skinny()
