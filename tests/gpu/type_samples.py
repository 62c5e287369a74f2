"""Configs for tests of element types."""

from __future__ import annotations

from typing import Any

from tilewright import Config, DType

PACKED = ["int4", "uint4", "uint1", "sign1"]
SUMS = {"float64": "f64"} | dict.fromkeys(["int8", "uint8", *PACKED], "s32")
BASE = {
    "tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2, "warps_k": 1, "stages": 3, "smem_layout": "xor",
    "fragment_load": "ldmatrix", "double_buffer": 1, "mma_k": 16, "epilogue": "smem", "min_blocks": 1,
    "copy_bytes": 16, "snake": 1, "split_k": 1, "raster": "m", "group": 1,
}  # fmt: skip
SIMT_BASE = {
    "tile_m": 64, "tile_n": 64, "thread_m": 4, "thread_n": 4, "tile_k": 16, "stages": 2,
    "split_k": 2, "raster": "m", "group": 1,
}  # fmt: skip


def mma(dtype: str, **knobs: Any) -> Config:
    """A config with 128-byte rows."""
    own: dict[str, Any] = {"tile_k": 1024 // DType(dtype).bits, "accumulate": SUMS.get(dtype, "f32")}
    if dtype == "float64":
        own["fragment_load"] = "direct"
    return Config.of("mma_sync", {**BASE, **own, **knobs})


def whole(dtype: str, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """The size with k rounded up to what fills bytes: rows of packed types in layout nt are whole bytes."""
    m, n, k = size
    return m, n, k + -k % DType(dtype).packing
