"""Family ``wgmma_ws``: warp-specialised, persistent wgmma, sm_90a (``csrc/wgmma_ws.cu``)."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from operator import itemgetter
from typing import Literal

from kernels import cuda
from kernels.families.wgmma_ws_budgets import (
    grid,
    operand_tiles,
    smem_bytes,
    store_box,
    store_swizzle,
    workspace,
)
from kernels.families.wgmma_ws_imitation import alike
from kernels.families.wgmma_ws_knobs import (
    EPILOGUES,
    HINTS,
    KNOBS,
    PLACEMENTS,
    REDUCTIONS,
    SCHEDULES,
    TMA_STORES,
    Knobs,
)
from kernels.families.wgmma_ws_model import cycles
from kernels.families.wgmma_ws_picks import candidates
from kernels.families.wgmma_ws_rules import RULES
from kernels.families.wgmma_ws_search import SEARCH_RULES
from kernels.family import BuildSpec, Family
from kernels.outline import Outline
from tilewright.artifact import Argument, BlockOrder, Finish, LaunchPlan, Repack, Scalar, Serves, TensorMap
from tilewright.config import Config
from tilewright.device import DeviceSpec
from tilewright.problem import DType, GemmProblem

ENTRY = "wgmma_ws_gemm"
PICKS, WITHIN = 16, 1.25
# Picks of one schedule, and ways to spread one shape over blocks: at first, and where that leaves room.
DIVERSE, REST = (11, 2), (PICKS, 4)

_TYPES = (
    DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8_E4M3FN, DType.FLOAT8_E5M2, DType.INT8, DType.UINT8,
)  # fmt: skip


# Knobs whose values are those of the macros of the same name.
_AS_THEY_ARE = (
    "tile_k", "consumers_m", "consumers_n", "cluster_m", "cluster_n", "cluster_k", "whole_sectors",
    "store_stages", "stages", "in_flight", "promote", "stream_k", "swap_ab", "prefetch", "snake_k",
    "even_waves", "beat",
)  # fmt: skip


class WgmmaWs(Family[Knobs]):
    """A producer that fills a ring by TMA and one to three consumers that multiply and store."""

    name = "wgmma_ws"
    doc = "warp-specialised persistent wgmma: sm_90, 16-bit types in all layouts, 8-bit types in nt, any size"
    device_kind = "cuda"
    knobs = KNOBS
    knobs_type = Knobs
    rules = RULES
    search_rules = SEARCH_RULES

    def why_unsupported(self, problem: GemmProblem, device: DeviceSpec) -> str | None:
        """sm_90, a type of wgmma, in 8 bits with k contiguous."""
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

    def build_spec(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> BuildSpec:
        """One compilation of ``wgmma_ws.cu``."""
        k = self.knob_values(config)
        defines = cuda.gemm_defines(problem, grid(k, device), k.raster, k.group, k.snake)
        defines |= {name.upper(): getattr(k, name) for name in _AS_THEY_ARE}
        defines |= {
            "SCHEDULE": SCHEDULES.index(k.schedule),
            "ACCUMULATE": int(problem.accumulate is DType.FLOAT16),
            "EPILOGUE": EPILOGUES.index(k.epilogue),
            "REDUCTION": REDUCTIONS.index(k.reduction),
            "REPACK": int(bool(_repacks(problem))),
            "PREFETCH_A": int(k.prefetch > 0 and cuda.weights(problem) == "a"),
            "PLACEMENT": PLACEMENTS.index(k.placement),
            "HINT_A": HINTS.index(k.hint_a),
            "HINT_B": HINTS.index(k.hint_b),
            "HINT_D": HINTS.index(k.hint_d),
        }
        return cuda.build_spec("wgmma_ws.cu", ENTRY, defines, device)

    def plan(self, config: Config, problem: GemmProblem, device: DeviceSpec) -> LaunchPlan:
        """Persistent blocks in clusters, with tensor maps of A, of B and, where TMA stores, of D."""
        k = self.knob_values(config)
        align_a, align_b = (_alignment(problem, operand) for operand in ("a", "b"))
        return LaunchPlan(
            format="cubin",
            target=cuda.TARGETS[device.arch],
            entry=ENTRY,
            block=(k.threads, 1, 1),
            grid=grid(k, device),
            args=(*_maps(k, problem), *_order(k), Scalar("batch", "int32"), *cuda.gemm_arguments(problem)),
            serves=Serves.of(problem),
            dynamic_smem=smem_bytes(k, problem),
            cluster=(k.cluster, 1, 1),
            programmatic=True,
            repacks=_repacks(problem),
            finish=Finish("reduce_parts", (32, 8, 1), 8, 128) if k.reduction == "kernel" else None,
            workspace=workspace(k, device),
            preconditions=cuda.preconditions(problem, align_a, align_b),
        )

    def picks(self, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """The fastest of the known shapes by the model, of both schedules and many shapes where there are,
        none that should take more than 25 % longer than the first."""
        timed = sorted(
            ((cycles(k, problem, device), k) for k in candidates(problem, device)), key=itemgetter(0)
        )
        chosen: list[Config] = []
        of_schedule: Counter[str] = Counter()
        spreads: dict[tuple[str, int, int, int], dict[tuple[int, ...], set[str]]] = defaultdict(dict)
        limit = math.inf
        for (of_one, ways), (expected, k) in itertools.product((DIVERSE, REST), timed):
            if len(chosen) == PICKS:
                break
            known = spreads[k.schedule, k.swap_ab, k.tile_m, k.tile_n]
            spread = (k.cluster_m, k.cluster_n, k.cluster_k, k.split_k)
            tried = k.reduction in known[spread] if spread in known else len(known) >= ways
            if expected > limit or of_schedule[k.schedule] >= of_one or tried:
                continue
            if self._worth_a_trial(k, problem, device):
                of_schedule[k.schedule] += 1
                known.setdefault(spread, set()).add(k.reduction)
                chosen.append(self.config(k))
                limit = min(limit, WITHIN * expected)
        return chosen

    def imitations(self, outline: Outline, problem: GemmProblem, device: DeviceSpec) -> list[Config]:
        """One of either schedule where registers allow; only what is worth a trial, if any of them is."""

        def valid(k: Knobs) -> bool:
            return self.why_invalid(self.config(k), problem, device) is None

        followers = alike(outline, problem, device, valid)
        worth = [k for k in followers if self._worth_a_trial(k, problem, device)]
        return [self.config(k) for k in worth or followers]

    def _worth_a_trial(self, k: Knobs, problem: GemmProblem, device: DeviceSpec) -> bool:
        if any(rule.why(k, problem, device) for rule in self.search_rules):
            return False
        return self.why_invalid(self.config(k), problem, device) is None


def _alignment(problem: GemmProblem, operand: str) -> int:
    """Bytes that must divide address and row stride: those of TMA, or of an element where it is repacked."""
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
    maps = [
        TensorMap("a", a.box, promotion=k.l2_promotion),
        TensorMap("b", b.box, promotion=k.l2_promotion),
    ]
    if k.epilogue in TMA_STORES:
        maps.append(TensorMap("d", store_box(k), swizzle=store_swizzle(k), promotion=0))
    return tuple(maps)


def _order(k: Knobs) -> tuple[Argument, ...]:
    return (BlockOrder("where_blocks_run"),) if k.placement == "gpc" else ()


WGMMA_WS = WgmmaWs()
