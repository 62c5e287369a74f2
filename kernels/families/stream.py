"""Family ``stream``: M or N of at most 16, the large operand streamed through shared memory by TMA, sm_90
(``csrc/stream.cu``).

The *weights* are the operand with many rows, the *thin* operand has few; *wide* is the axis of D along the
weights' rows. A *panel* is 128 bytes of k, a *unit* one share of a tile.
"""

from __future__ import annotations

import dataclasses

from kernels import cuda
from kernels.families.skinny_knobs import MOST_THIN, Shape, finish_workspace
from kernels.families.stream_knobs import (
    CLUSTERS,
    HINTS,
    KNOBS,
    PANEL_BYTES,
    PREFETCHES,
    SPLITS,
    Knobs,
    grid,
    max_k,
    panel_elements,
    smem_bytes,
    smem_left,
    thin_panels,
)
from kernels.families.stream_rules import (
    BALANCED,
    RING_BYTES,
    ROOM,
    RULES,
    SEARCH_RULES,
    balance,
    ring_stages,
    why_cluster,
    why_prefetch,
    why_split,
)
from kernels.family import BuildSpec, Family
from tilewright.artifact import LaunchPlan, Scalar, Serves, TensorMap
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

TYPES = (DType.FLOAT16, DType.BFLOAT16, *cuda.FLOAT8, DType.INT8, DType.UINT8)
_SMALLEST = Knobs(warp_tiles=1, warps=4, panels=1, split_k=SPLITS[-1])
# Knobs whose values are those of the macros of the same name.
_AS_THEY_ARE = ("warp_tiles", "warps", "panels", "stages", "cluster_k", "prefetch")


class Stream(Family[Knobs]):
    """Weights by TMA through a ring, the thin operand resident, mma.sync from shared memory."""

    name = "stream"
    doc = "m or n up to 16: the long operand streamed by TMA; sm_90, 8- and 16-bit types, layout nt"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = RULES
    search_rules = SEARCH_RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """sm_90, M or N at most 16, 8- or 16-bit types along k in rows that TMA can describe, and a k whose
        parts fit in shared memory."""
        reason = cuda.why_unsupported(problem, device)
        if reason:
            return reason
        if device.arch != "sm_90":
            return f"stream needs the TMA of sm_90, {device.arch} has none"
        if min(problem.m, problem.n) > MOST_THIN:
            return f"stream is for m or n up to {MOST_THIN}, not {problem.m} x {problem.n}"
        if problem.dtype not in TYPES:
            return f"stream multiplies {', '.join(TYPES)}, not {problem.dtype}"
        if problem.accumulate is DType.FLOAT16:
            return "stream accumulates in float32 or int32, not float16"
        if problem.layout.value != "nt":
            return f"stream reads operands that lie along k, layout nt, not {problem.layout.value}"
        reasons = (rule.why(_SMALLEST, problem, device) for rule in RULES)
        return cuda.why_no_tma(problem) or next(filter(None, reasons), None)

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``stream.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, grid(k, problem, device), "m", 1)
        defines |= {name.upper(): getattr(k, name) for name in _AS_THEY_ARE}
        defines |= {
            "TILE_K": k.stage_panels * panel_elements(problem),
            "WEIGHTS_A": int(Shape.of(problem).weights == "a"),
            "THIN_PANELS": thin_panels(k, problem),
            "WEIGHT_HINT": HINTS.index(k.hint),
        }
        return cuda.build_spec("stream.cu", "stream", defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Persistent blocks, one a multiprocessor, with a tensor map of the weights."""
        k, shape = self.knob_values(config), Shape.of(problem)
        weights = TensorMap(
            shape.weights, (k.tile_wide, PANEL_BYTES // problem.dtype.size), promotion=k.l2_promotion
        )
        tile = k.tile_wide * shape.rows
        needs = cuda.preconditions(problem, cuda.TMA_ALIGNMENT, cuda.TMA_ALIGNMENT)
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry="stream",
            block=(k.threads + 32, 1, 1),  # and the warp that asks for weights
            cluster=(k.cluster_k, 1, 1),
            grid=grid(k, problem, device),
            args=(weights, Scalar("batch", "int32"), *cuda.gemm_arguments(problem)),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            programmatic=True,
            workspace=finish_workspace(problem, tile, k.threads, k.split_k),
            preconditions=dataclasses.replace(needs, max_k=max_k(k, problem)),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """What won on an H200, with clusters or splits as small as hold the thin operand and share the work
        out."""
        if self.why_unsupported(problem, device):
            return []
        best = 2 if Shape.of(problem).rows > _FEW else 1
        ordered = sorted(_STRUCTURES, key=lambda one: one.warp_tiles != best)
        filled = [_filled(one, problem, device) for one in ordered]
        fitting = [one for one in filled if not any(rule.why(one, problem, device) for rule in SEARCH_RULES)]
        configs = dict.fromkeys(self.config(one) for one in fitting or filled)
        return [one for one in configs if self.why_invalid(one, problem, device) is None]


# warp_tiles, warps, panels; what won on an H200 (docs/hopper.md), first with few thin rows. The rest follows.
_STRUCTURES = (
    Knobs(1, 8, 2, hint="evict_first"),
    Knobs(1, 16, 1, hint="evict_first"),
    Knobs(1, 4, 4, hint="evict_first"),
    Knobs(1, 8, 1, hint="evict_first"),
    Knobs(2, 8, 1, hint="evict_first"),
    Knobs(2, 4, 4, hint="evict_first"),
    Knobs(2, 4, 2, hint="evict_first"),
    Knobs(1, 4, 1),
)
_FEW = 8  # thin rows: a cluster of more gains by wider tiles, as it adds up at the end of each


def _filled(k: Knobs, problem: GemmProblem, device: DeviceSpec) -> Knobs:
    """With the smallest cluster, or the fewest splits, that leave the ring its room and share the work out,
    stages to fill the ring, and as many of them brought ahead as may pay."""
    clusters = [blocks for blocks in CLUSTERS if cuda.why_no_room(blocks, device) is None]
    options = [dataclasses.replace(k, cluster_k=blocks) for blocks in clusters]
    options += [dataclasses.replace(k, split_k=split) for split in SPLITS if split > 1]
    roomy = [one for one in options if smem_left(one, problem, device) >= ROOM] or options[-1:]
    reasons = (why_cluster, why_split)
    worth = [one for one in roomy if not any(why(one, problem, device) for why in reasons)] or roomy[:1]
    even = (one for one in worth if balance(one, problem, device) >= BALANCED)
    k = next(even, max(worth, key=lambda one: balance(one, problem, device)))
    k = dataclasses.replace(k, stages=ring_stages(k, RING_BYTES, problem, device))
    ahead = (dataclasses.replace(k, prefetch=stages) for stages in sorted(PREFETCHES, reverse=True))
    return next(one for one in ahead if why_prefetch(one, problem, device) is None)


STREAM = Stream()
