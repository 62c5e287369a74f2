"""Configs for tests of element types."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernels.mma_sync.config import Knobs as MmaKnobs
from kernels.simt.config import Knobs as SimtKnobs
from tilewright import Config, DType

PACKED = ["int4", "uint4", "uint1", "sign1"]
ACCUMULATE = {"float64": "f64"} | dict.fromkeys(["int8", "uint8", *PACKED], "s32")
BASE: dict[str, Any] = dataclasses.asdict(MmaKnobs())
SIMT_BASE: dict[str, Any] = dataclasses.asdict(SimtKnobs(split_k=2))


def mma(dtype: str, **knobs: Any) -> Config:
    """A config with 128-byte rows."""
    own: dict[str, Any] = {"tile_k": 1024 // DType(dtype).bits, "accumulate": ACCUMULATE.get(dtype, "f32")}
    if dtype == "float64":
        own["fragment_load"] = "direct"
    return Config.of("mma_sync", {**BASE, **own, **knobs})


def whole(dtype: str, size: tuple[int, int, int]) -> tuple[int, int, int]:
    """The size with k rounded up to what fills bytes: rows of packed types in layout nt are whole bytes."""
    m, n, k = size
    return m, n, k + -k % DType(dtype).packing
