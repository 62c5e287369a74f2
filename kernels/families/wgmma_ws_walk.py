"""How family ``wgmma_ws`` walks over the tiles of D: its waves, and the raster of the first picks."""

from __future__ import annotations

import functools
import itertools

from kernels import cuda
from tilewright.device import DeviceSpec
from tilewright.problem import GemmProblem

SMALL = 64  # extents of D up to which weights fill wgmma's M rather than activations
BAND = 8  # clusters: about as many as a GPC has room for
_GROUPS = (BAND, 4, 16, 2)
_REQUEST = 0.1  # what a byte asked of the L2 costs of one that comes from DRAM


def running(blocks: int, device: DeviceSpec) -> int:
    """Clusters of so many blocks that run at once."""
    return max(cuda.room_in_clusters(blocks, device) // blocks, 1)


def clusters(problem: GemmProblem, extent: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of clusters that cover a D, where one computes ``extent`` rows and columns of it."""
    return -(-problem.m // extent[0]), -(-problem.n // extent[1])


def single_wave(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int, split_k: int = 1
) -> bool:
    """Whether all clusters of a launch run at once."""
    rows, columns = clusters(problem, extent)
    return rows * columns * problem.batch * split_k <= running(blocks, device)


def kept_bytes(device: DeviceSpec) -> int:
    """What an operand may take to stay in the L2 from wave to wave, while the other passes through."""
    return device.l2_bytes // 3


@functools.lru_cache(maxsize=4096)
def walk(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int
) -> tuple[str, int, int]:
    """Raster, group and snake that should move the fewest bytes.

    Args:
        extent: rows and columns of D that a cluster computes.
        blocks: of a cluster.
    """
    rows, columns = clusters(problem, extent)
    if min(rows, columns) == 1:
        return "m", 1, 0
    walks = [(raster, group) for raster, group in itertools.product("mn", _GROUPS)]
    possible = [one for one in walks if one[1] <= (rows if one[0] == "m" else columns)]
    if single_wave(problem, device, extent, blocks):
        possible = [("m", BAND)] if rows >= BAND else []
    raster, group = min(
        possible or [("m", 1)],
        key=lambda one: _moved(problem, device, extent if one[0] == "m" else extent[::-1], blocks, *one),
    )
    return raster, group, int(1 < group < (rows if raster == "m" else columns))


def _moved(
    problem: GemmProblem, device: DeviceSpec, extent: tuple[int, int], blocks: int, raster: str, group: int
) -> float:
    """Rows of A and of B that come from DRAM, and a tenth of those that GPCs ask the L2 for.

    Clusters that run at once lie in a rectangle of ``group`` along the band, or of several bands. What they
    share of an operand along the band stays in the L2 for the next wave if it is small enough, and so does
    a whole operand across.
    """
    size = (problem.m, problem.n) if raster == "m" else (problem.n, problem.m)
    along, across = (-(-whole // step) for whole, step in zip(size, extent, strict=True))
    kept = kept_bytes(device) / (problem.k * problem.dtype.size)
    at_once = running(blocks, device)
    depth = min(max(group, at_once / across), along)
    band = size[0] if depth * extent[0] <= kept else size[0] * max(across * depth / at_once, 1)
    other = size[1] if size[1] <= kept else size[1] * along / depth
    asked = min(BAND, group) * extent[0] + max(BAND / group, 1) * extent[1]
    return band + other + _REQUEST * along * across / BAND * asked
