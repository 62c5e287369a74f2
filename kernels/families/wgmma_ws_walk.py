"""How the first picks of family ``wgmma_ws`` walk over the tiles of D."""

from __future__ import annotations

import functools
import itertools

from kernels import cuda
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

BAND = 8  # clusters: about as many as a GPC has room for
_GROUPS = (BAND, 4, 16, 2)
_KEPT = 1 / 3  # of the L2, for an operand that later waves load again
_REQUEST = 0.1  # what a byte asked of the L2 costs of one that comes from DRAM


@functools.lru_cache(maxsize=4096)
def walk(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int
) -> tuple[str, int, int]:
    """Raster, group and snake that should move the fewest bytes.

    Args:
        extent: rows and columns of D that a cluster computes.
        blocks: of a cluster.
    """
    rows, columns = -(-problem.m // extent[0]), -(-problem.n // extent[1])
    walks = [(raster, group) for raster, group in itertools.product("mn", _GROUPS)]
    possible = [one for one in walks if one[1] <= (rows if one[0] == "m" else columns)]
    if rows * columns <= device.units:
        possible = [("m", BAND)] if rows >= BAND else []
    running = cuda.room_in_clusters(blocks, device) / blocks
    raster, group = min(
        possible or [("m", 1)],
        key=lambda one: _moved(problem, device, extent if one[0] == "m" else extent[::-1], running, *one),
    )
    return raster, group, int(1 < group < (rows if raster == "m" else columns))


def _moved(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], running: float, raster: str, group: int
) -> float:
    """Rows of A and of B that come from DRAM, and are asked of the L2 once for each GPC.

    Clusters that run at once lie in a rectangle of ``group`` along the band, or of several bands; of a wave
    the L2 keeps an operand of a third of its size.
    """
    size = (problem.m, problem.n) if raster == "m" else (problem.n, problem.m)
    along, across = (-(-whole // step) for whole, step in zip(size, extent, strict=True))
    kept = _KEPT * device.l2_bytes / (problem.k * problem.dtype.size)
    depth = min(max(group, running / across), along)
    band = size[0] if depth * extent[0] <= kept else size[0] * max(across * depth / running, 1)
    other = size[1] if size[1] <= kept else size[1] * along / depth
    asked = min(BAND, group) * extent[0] + max(BAND / group, 1) * extent[1]
    return band + other + _REQUEST * along * across / BAND * asked
