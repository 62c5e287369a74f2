"""The tile hint of a cuBLASLt algorithm."""

from __future__ import annotations

import re
from typing import Any

from kernels.base.tile_hint import TileHint


def tile_hint_of(detail: dict[str, Any]) -> TileHint | None:
    """The tile hint of an algorithm from its attributes by name; None if its tile is unknown.

    cuBLASLt computes the transpose of a row-major D (:mod:`tuner.devices.cublaslt_matmul`), so the rows
    of its tiles and clusters run along n. Kernels from before Hopper have ``SHAPE_AUTO``.
    """
    tile = re.fullmatch(r"TILE_(\d+)x(\d+)", detail["tile"])
    if tile is None:
        return None
    cluster = re.fullmatch(r"SHAPE_(\d+)x(\d+)x1", detail["cluster"])
    stages = re.fullmatch(r"STAGES_(\d+)x(\d+|AUTO)", detail["stages"])
    return TileHint(
        tile_m=int(tile[2]),
        tile_n=int(tile[1]),
        tile_k=int(stages[1]) if stages else None,
        cluster=(int(cluster[2]), int(cluster[1])) if cluster else None,
        split_k=max(1, detail["split_k"]),
        stages=int(stages[2]) if stages and stages[2] != "AUTO" else None,
    )
