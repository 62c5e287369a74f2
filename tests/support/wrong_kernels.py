"""Kernels of every GPU family with one planted fault each, which the correctness gate must find."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mutants import plant

from kernels.compiler.build import build
from kernels.registry import FAMILIES
from tilewright import Artifact, Config, GemmProblem
from tilewright.schema.device import DeviceSpec

FULL = GemmProblem(200, 272, 328, "float16", "nt", batch=2, has_bias=True, has_c=True)
PLAIN = dataclasses.replace(FULL, batch=1, has_bias=False, has_c=False)
LONG = GemmProblem(200, 272, 2048, "float16", "nt")
SHORT = GemmProblem(200, 272, 40, "float16", "nt")
ODD = GemmProblem(199, 271, 329, "float16", "nt")
ODD_C = dataclasses.replace(ODD, has_c=True)
TWO_C = dataclasses.replace(ODD_C, batch=2)
RELU = dataclasses.replace(PLAIN, activation="relu")
GELU = dataclasses.replace(PLAIN, activation="gelu")
FLOAT32 = GemmProblem(200, 272, 328, "float32", "nn")
TWO32 = dataclasses.replace(FLOAT32, batch=2)
SHORT32 = GemmProblem(200, 272, 24, "float32", "nn")
FLOAT8 = GemmProblem(200, 272, 2064, "float8_e4m3fn", "nt")
FEW = GemmProblem(5, 1000, 2048, "float16", "nt")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault, and the kernel in which it shows.

    Attributes:
        before, after: what stands in ``source``, and what the fault makes of it.
        knobs: those of the config that differ from the family's first heuristic config.
    """

    family: str
    source: str
    before: str
    after: str
    problem: GemmProblem = FULL
    knobs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.family}: {self.before} -> {self.after or 'nothing'}"

    def config(self, device: DeviceSpec) -> Config:
        """The config of the kernel, which is valid."""
        family = FAMILIES[self.family]
        first = family.heuristic_configs(self.problem, device)[0]
        config = Config.of(self.family, dict(first.knobs) | dict(self.knobs))
        reason = family.why_invalid(config, self.problem, device)
        assert reason is None, reason
        return config

    def built(self, device: DeviceSpec, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Artifact:
        """The wrong kernel, compiled from copies of the sources in ``folder``."""
        plant(monkeypatch, folder, self.source, self.before, self.after)
        return build(FAMILIES[self.family], self.config(device), self.problem, device)


SPLIT = {"split_k": 2}
EPILOGUE, RASTER, SPLIT_K = "common/epilogue.cuh", "common/raster.cuh", "common/split_k.cuh"
REPACK = "common/repack.cuh"
MMA, MMA_LOAD, MMA_STORE = "mma_sync/kernel.cu", "mma_sync/compute.cuh", "mma_sync/epilogue.cuh"
WS, WS_STORE, WS_ORDER = "wgmma_ws/kernel.cu", "wgmma_ws/epilogue.cuh", "wgmma_ws/scheduler.cuh"
WS_SPLIT = "wgmma_ws/split_k.cuh"
ONE_STRIP = {"swizzle_size": 16}
SNAKE = {"snake": 1, "swizzle_size": 1, "cluster_m": 1, "cluster_n": 1, "split_k": 1, "reduction": "none"}
ONE_PART = {"split_k": 1, "reduction": "none"}
SQUARE_TILE = {"swap_ab": 0, "tile_m": 64, "tile_n": 64, "consumers_m": 1, "consumers_n": 1}
TMA_TILE = ONE_PART | SQUARE_TILE | {"store_stages": 1, "stages": 3, "epilogue": "tma"}
THREE_SUBTILES = TMA_TILE | {"tile_n": 192, "store_stages": 2}
ONE_CLUSTER = SQUARE_TILE | ONE_PART | {"cluster_k": 2, "cluster_m": 1, "cluster_n": 1}

FAULTS = (
    # The epilogue that most families share.
    Fault("mma_sync", EPILOGUE, "x = alpha * accumulator;", "x = accumulator;"),
    Fault("mma_sync", EPILOGUE, "reads_c() ? c[row * ldc + col] : Out{}", "c[row * ldc + col]"),
    Fault("mma_sync", EPILOGUE, "c[row * ldc + col]", "c[col]"),
    Fault("mma_sync", EPILOGUE, "bias[col]", "bias[n - 1 - col]"),
    Fault("mma_sync", EPILOGUE, "from(activate(x))", "from(x)", RELU),
    Fault("mma_sync", EPILOGUE, "|| x != x ? x : R(0)", "? x : R(0.5)", RELU),
    Fault("mma_sync", EPILOGUE, "cubic = -0.1029432397f", "cubic = -0.05f", GELU),
    Fault("wmma", EPILOGUE, "x = alpha * accumulator;", "x = alpha * accumulator + alpha;", PLAIN),
    Fault("simt", EPILOGUE, "if (row >= m || col >= n) return;", "if (row >= m) return;", FLOAT32),
    Fault(
        "simt",
        EPILOGUE,
        "if (row >= m || col >= n) return;",
        "if (row >= m - 1 || col >= n) return;",
        FLOAT32,
    ),
    # The raster order.
    Fault("wgmma_ws", RASTER, "j = across - 1 - j;", "j = across - j;", PLAIN, SNAKE),
    Fault("mma_sync", RASTER, "width >= cfg::swizzle_size", "true", PLAIN, ONE_STRIP),
    Fault("mma_sync", RASTER, "within = index - strip * strip_tiles", "within = index", PLAIN),
    # Split-K by the last CTA to arrive.
    Fault("mma_sync", SPLIT_K, "values[i] += __ldcg", "values[i] = __ldcg", LONG, SPLIT),
    Fault("mma_sync", SPLIT_K, "if (threadIdx.x == 0) *counter = 0;", "", LONG, SPLIT),
    Fault("mma_sync", SPLIT_K, "(workspace) + tile;", "(workspace);", LONG, SPLIT),
    Fault("mma_sync", SPLIT_K, "(tiles * 4LL + 255) / 256 * 256", "0", LONG, SPLIT),
    Fault("gemv", SPLIT_K, "values[i] += __ldcg", "values[i] = __ldcg", FEW, SPLIT),
    # Tiles in shared memory, and the loop over k of mma_sync.
    Fault(
        "mma_sync", "common/smem_tile.cuh", "row + first_row()) >= zeros;", "row + first_row()) >= 0;", ODD
    ),
    Fault("mma_sync", "common/smem_tile.cuh", "{first * DEPTH - pad,", "{-pad,", LONG, SPLIT),
    Fault("mma_sync", MMA, "if (i < k_tiles) load_tile", "if (i + 1 < k_tiles) load_tile", SHORT),
    Fault("mma_sync", MMA, "c += batch * stride_c;", "c += 0;"),
    Fault("mma_sync", MMA, "b += batch * stride_b,", ""),
    Fault(
        "mma_sync",
        MMA_LOAD,
        "load_a(f.a[piece - groups_n], stage, piece - groups_n, step)",
        "load_a(f.a[piece - groups_n], stage, 0, step)",
        PLAIN,
        {"tile_m": 64},
    ),
    Fault("mma_sync", MMA_LOAD, "cfg::b_transposed ? lane() / 8 % 2 : lane() / 16),", "0),"),
    Fault(
        "mma_sync",
        MMA_STORE,
        "if (origin.m + row >= epilogue.m || col >=",
        "if (col >=",
        PLAIN,
        {"epilogue": "smem"},
    ),
    Fault(
        "mma_sync", MMA_STORE, "warp_row + at.base,", "warp_row,", PLAIN, {"epilogue": "smem", "tile_m": 64}
    ),
    # wmma and simt.
    Fault("wmma", "wmma/kernel.cu", "row = warp_row + i * 16;", "row = warp_row;", PLAIN, {"tile_m": 64}),
    Fault(
        "wmma",
        "wmma/kernel.cu",
        "if (tile < k_tiles) load(tile, stage);",
        "if (tile + 1 < k_tiles) load(tile, stage);",
    ),
    Fault(
        "wmma",
        "common/smem_tile.cuh",
        "min(split * tiles, all),",
        "min(split * tiles + split, all),",
        LONG,
        SPLIT,
    ),
    # What lies behind the rows of the first product is the second one, not zeros by chance.
    Fault("simt", "simt/kernel.cu", "x0 + x < extent && k0 + k < depth", "x0 + x < extent", TWO32),
    Fault(
        "simt",
        "simt/kernel.cu",
        "min(first + split_tiles, all_k_tiles);",
        "min(first + split_tiles, all_k_tiles - 1);",
        FLOAT32,
    ),
    Fault("simt", "simt/kernel.cu", "TileA::elements + k * TileB::stride", "TileA::elements", FLOAT32),
    Fault("simt", "simt/kernel.cu", "b.load(y, k);", "b.load(y, begin);", SHORT32, {"stages": 0}),
    # gemv and gemv_tma.
    Fault("gemv", "gemv/epilogue.cuh", "w < PARTIALS; ++w", "w < PARTIALS - 1; ++w", FEW),
    Fault(
        "gemv",
        "gemv/kernel.cu",
        "* split / cfg::split_k) * cfg::tile_k",
        "* split / (cfg::split_k + 1)) * cfg::tile_k",
        FEW,
        SPLIT,
    ),
    Fault("gemv", "gemv/kernel.cu", "+ warp * cfg::tile_k,", "+ warp / 2 * cfg::tile_k,", FEW),
    Fault(
        "gemv", "gemv/load.cuh", "min(row0 + g + 8 * i, extent - 1)", "min(row0 + g + 4 * i, extent - 1)", FEW
    ),
    Fault(
        "gemv",
        "gemv/load.cuh",
        "from[i] += cfg::activations_k_major ? distance",
        "from[i] += cfg::activations_k_major ? 0",
        FEW,
    ),
    Fault("gemv_tma", "gemv/epilogue.cuh", "w < PARTIALS; ++w", "w < PARTIALS - 1; ++w", FEW),
    Fault("gemv_tma", "gemv_tma/kernel.cu", "chunk - work.begin + at);", "at);", FEW),
    Fault(
        "gemv_tma",
        "gemv_tma/kernel.cu",
        "weight_row = work.weight_tile * cfg::weight_rows;",
        "weight_row = 0;",
        FEW,
    ),
    # wgmma.
    Fault("wgmma", "wgmma/kernel.cu", "row0, index * cfg::tile_k, batch);", "row0, 0, batch);"),
    Fault("wgmma", "wgmma/kernel.cu", "    acc.clear();", ""),
    Fault("wgmma", "wgmma/kernel.cu", "d += batch * stride_d;", ""),
    Fault("wgmma", "wgmma/epilogue.cuh", "* 64 + warp % 4 * 16;", "* 64 + warp % 4 * 8;"),
    Fault(
        "wgmma",
        "common/pipeline.cuh",
        "if (++stage == DEPTH) stage = 0, phase ^= 1;",
        "if (++stage == DEPTH) stage = 0;",
        LONG,
    ),
    # wgmma_ws: loads and products.
    Fault(
        "wgmma_ws",
        WS,
        "mbarrier_wait(smem.ring.full(state.stage), state.phase);\n        multiply_tile(acc",
        "multiply_tile(acc",
        LONG,
    ),
    Fault(
        "wgmma_ws",
        WS,
        "mbarrier_wait(ring.empty(state.stage), state.phase ^ 1);\n            const",
        "const",
        LONG,
        ONE_PART,
    ),
    Fault("wgmma_ws", WS, "step > 0 ? 1 : index);", "1);"),
    Fault(
        "wgmma_ws",
        "wgmma_ws/config.cuh",
        "row = cfg::pingpong ? 0 : consumer % cfg::consumers_m * cfg::warpgroup_m;",
        "row = 0;",
        PLAIN,
        {"consumers_m": 2, "tile_m": 128},
    ),
    Fault("wgmma_ws", WS, "store.epilogue.c = c + work.batch * stride_c;", "store.epilogue.c = c;", TWO_C),
    Fault(
        "wgmma_ws",
        WS,
        "if (index % every == every - 1 || index == k_tiles - 1) acc.add",
        "if (index % every == every - 1) acc.add",
        FLOAT8,
        {"promote": 2, "tile_k": 128},
    ),
    Fault("wgmma_ws", WS_ORDER, "batch == 1 ? 0 : cluster_tile / in_matrix", "0"),
    Fault(
        "wgmma_ws",
        WS_ORDER,
        "* (partition + 1) / partitions;",
        "* (partition + 1) / partitions - (k_tiles > 2);",
    ),
    # wgmma_ws: the repack kernel, the epilogue, split-K.
    Fault("wgmma_ws", REPACK, "const int bits = shift % 4 * 8;", "const int bits = 0;", ODD),
    Fault("wgmma_ws", REPACK, "end_chunk <= last", "end_chunk < last", ODD),
    Fault("wgmma_ws", WS_STORE, "values[matrix] = value(", "values[matrix] = value(1 ^ ", PLAIN),
    Fault("wgmma_ws", WS_STORE, "if (last) here[first] = low;", "", ODD, {"epilogue": "stmatrix"}),
    Fault("wgmma_ws", WS_STORE, "OutPair&>(values[matrix])", "OutPair&>(values[0])", FULL, TMA_TILE),
    Fault(
        "wgmma_ws",
        WS_STORE,
        "loaded, column_of(number), row_of(number), batch);",
        "loaded, column_of(number), row_of(number), 0);",
        FULL,
        TMA_TILE,
    ),
    Fault(
        "wgmma_ws", WS_STORE, "int next = number - lag", "int next = number + 1 - lag", FULL, THREE_SUBTILES
    ),
    Fault("wgmma_ws", WS_STORE, "held[p - i * pairs]", "held[0]", ODD_C),
    Fault("wgmma_ws", "common/wgmma.cuh", "from[DOWN ? epilogue.ldc : 1]", "from[0]", ODD_C),
    Fault(
        "wgmma_ws",
        WS_SPLIT,
        "split < cfg::split_k; ++split) add(sum,",
        "split < cfg::split_k - 1; ++split) add(sum,",
        LONG,
        SQUARE_TILE | {"split_k": 2, "reduction": "reduce_scatter"},
    ),
    Fault("wgmma_ws", WS_SPLIT, "x.x + other.a, x.y + other.b", "x.x, x.y", LONG, ONE_CLUSTER),
)
