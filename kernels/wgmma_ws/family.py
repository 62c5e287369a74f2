"""Family ``wgmma_ws``: warp-specialised, persistent wgmma, sm_90a (``kernels/wgmma_ws/kernel.cu``)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from operator import itemgetter
from types import MappingProxyType
from typing import Literal

from kernels.base.tile_hint import TileHint
from kernels.common import cuda
from kernels.wgmma_ws.config import L2_HINTS, TMA_STORES, Knobs
from kernels.wgmma_ws.heuristics import (
    CostModel,
    following_hint,
    rated_candidates,
    with_depth,
)
from kernels.wgmma_ws.layout import (
    grid,
    load_interval,
    loads_c,
    operand_tiles,
    smem_bytes,
    subtile,
    subtile_swizzle,
    workspace,
)
from kernels.wgmma_ws.search_rules import SEARCH_RULES
from kernels.wgmma_ws.validity import RULES
from tilewright.artifact import (
    Argument,
    CtaOrder,
    Finish,
    Grid,
    LaunchPlan,
    Preconditions,
    Repack,
    Scalar,
    TensorMap,
    Workspace,
)
from tilewright.schema.config import Config
from tilewright.schema.device import DeviceSpec
from tilewright.schema.problem import DType, GemmProblem

MOST_HEURISTIC_CONFIGS, WITHIN, CLOCKS_BEYOND = 16, 1.25, 2000
# The most configs of one schedule, and combinations of cluster and splits of one shape: in two rounds.
DIVERSE, REST = (11, 2), (MOST_HEURISTIC_CONFIGS, 4)

_TYPES = (
    DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT8, DType.UINT8,
)  # fmt: skip


class WgmmaWs(cuda.CudaFamily[Knobs]):
    """A producer warpgroup that loads by TMA and one to three consumer warpgroups that multiply and store."""

    name = "wgmma_ws"
    doc = "warp-specialised persistent wgmma: sm_90, 16-bit types in all layouts, 8-bit types in nt, any size"
    entry = "wgmma_ws_gemm"
    overlaps = True
    knobs_type = Knobs
    # NOTE: l2_promotion, load_interval and even_waves (full_bands_only) are gone whatever their value was.
    removed = MappingProxyType({"stream_k": 0, "in_flight": 1})
    rules = RULES
    search_rules = SEARCH_RULES
    smem_bytes = staticmethod(smem_bytes)

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """The reason no config computes the problem: not sm_90, its type, or 8 bits not in layout nt."""
        reason = cuda.why_unsupported(problem, device)
        if reason:
            return reason
        if device.arch != "sm_90":
            return f"wgmma exists on sm_90 alone, not on {device.arch}"
        if problem.dtype not in _TYPES:
            return f"this family multiplies {', '.join(_TYPES)}, not {problem.dtype}"
        if problem.dtype.size == 1 and problem.layout.value != "nt":
            return "wgmma needs k contiguous in 8-bit operands: use layout nt"
        return None

    def grid(self, k: Knobs, _problem: GemmProblem, device: DeviceSpec) -> Grid:
        """Persistent CTAs, one for each SM that clusters can fill."""
        return grid(k, device)

    def cluster(self, k: Knobs) -> int:
        """CTAs of a cluster."""
        return k.cluster

    def derived_macros(self, k: Knobs, problem: GemmProblem, _device: DeviceSpec) -> dict[str, int | str]:
        """Macros of accumulators, repack, prefetched operand, load interval and L2 hints."""
        priority = {"normal": 0, "evict_first": 1, "evict_last": 2}
        hints = zip(("HINT_A", "HINT_B", "HINT_D"), L2_HINTS[k.l2_hints], strict=True)
        return {
            "ACCUMULATE": int(problem.accumulate is DType.FLOAT16),
            "REPACK": int(bool(_repacks(problem))),
            "PREFETCH_A": int(k.prefetch > 0 and cuda.weights(problem) == "a"),
            "LOAD_INTERVAL": load_interval(k, problem),
            **{name: priority[hint] for name, hint in hints},
        }

    def leading_arguments(self, k: Knobs, problem: GemmProblem) -> tuple[Argument, ...]:
        """Tensor maps of A, B and, if TMA loads and stores them, C and D; the CTA order; the batch."""
        return *_maps(k, problem), *_order(k), Scalar("batch", "int32")

    def workspace(self, k: Knobs, _problem: GemmProblem, _device: DeviceSpec) -> Workspace:
        """Semaphores and partials of tiles that are split along k."""
        return workspace(k)

    def preconditions(self, _k: Knobs, problem: GemmProblem) -> Preconditions:
        """The alignment of A and B that TMA requires, or that of an element if they are repacked."""
        return cuda.preconditions(problem, *(_alignment(problem, operand) for operand in ("a", "b")))

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """How to launch the kernel, with the repack before it and the reduction after it."""
        reduces = self.knob_values(config).reduction == "kernel"
        return dataclasses.replace(
            super().plan(config, problem, device),
            repacks=_repacks(problem),
            finish=Finish("reduce_partials", (32, 8, 1), 8, 128) if reduces else None,
        )

    def estimated_clocks(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> float | None:
        """The clocks of a launch by the cost model, for comparison only."""
        return CostModel(problem, device).cycles(self.knob_values(config))

    def heuristic_configs(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The fastest candidates by the cost model, of both schedules and many shapes.

        None is more than 25 % and 2000 clocks slower than the fastest of them.
        """
        timed = sorted(rated_candidates(problem, device), key=itemgetter(0))
        chosen: list[Config] = []
        of_schedule: Counter[str] = Counter()
        spreads: dict[tuple[str, int, int, int], dict[tuple[int, ...], set[str]]] = defaultdict(dict)
        limit = math.inf
        for (of_one, ways), (expected, k) in itertools.product((DIVERSE, REST), timed):
            if len(chosen) == MOST_HEURISTIC_CONFIGS:
                break
            known = spreads[k.shape]
            spread = (k.cluster_m, k.cluster_n, k.cluster_k, k.split_k)
            tried = k.reduction in known[spread] if spread in known else len(known) >= ways
            if expected > limit or of_schedule[k.schedule] >= of_one or tried:
                continue
            whole = with_depth(k, problem, device)
            if self._worth_a_trial(whole, problem, device):
                of_schedule[k.schedule] += 1
                known.setdefault(spread, set()).add(k.reduction)
                chosen.append(self.config(whole))
                limit = min(limit, WITHIN * expected + CLOCKS_BEYOND)
        return chosen

    def configs_from_hint(self, hint: TileHint, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """Configs of either schedule that follow a hint: those worth a trial, or all if none is."""

        def valid(k: Knobs) -> bool:
            return self.why_invalid(self.config(k), problem, device) is None

        followers = following_hint(hint, problem, device, valid)
        worth = [k for k in followers if self._worth_a_trial(k, problem, device)]
        return [self.config(k) for k in worth or followers]

    def _worth_a_trial(self, k: Knobs, problem: GemmProblem, device: DeviceSpec) -> bool:
        config = self.config(k)
        refused = self.why_not_searched(config, problem, device) or self.why_invalid(config, problem, device)
        return refused is None


def _alignment(problem: GemmProblem, operand: str) -> int:
    """Bytes that must divide address and row stride: those of TMA, or an element's if it is repacked."""
    return (
        cuda.TMA_ALIGNMENT if problem.stride_alignment(operand) >= cuda.TMA_ALIGNMENT else problem.dtype.size
    )


def _repacks(problem: GemmProblem) -> tuple[Repack, ...]:
    operands: tuple[Literal["a", "b"], ...] = ("a", "b")
    return tuple(
        Repack(operand, "repack_rows", (256, 1, 1), rows=8)
        for operand in operands
        if problem.stride_alignment(operand) < cuda.TMA_ALIGNMENT
    )


def _maps(k: Knobs, problem: GemmProblem) -> tuple[Argument, ...]:
    a, b = operand_tiles(k, problem)
    maps = [TensorMap("a", a.box), TensorMap("b", b.box)]
    if k.epilogue in TMA_STORES:
        d = TensorMap("d", subtile(k), swizzle=subtile_swizzle(k), promotion=0)
        maps += [dataclasses.replace(d, operand="c", kind="c_tensor_map"), d] if loads_c(k, problem) else [d]
    return tuple(maps)


def _order(k: Knobs) -> tuple[Argument, ...]:
    return (CtaOrder("probe_sm_ids"),) if k.cta_order == "gpc" else ()


WGMMA_WS = WgmmaWs()
