"""Which tile of D a block computes: the arithmetic of ``csrc/tile/raster.cuh``."""

from __future__ import annotations

RASTERS = ("m", "n")


def raster_tile(index: int, tiles: tuple[int, int], raster: str, group: int) -> tuple[int, int]:
    """(row, column) of the tile that block ``index`` computes in a grid of (rows, columns) tiles.

    ``raster`` names the axis along which groups of ``group`` tiles are laid; the walk takes the tiles of
    a group along that axis, then goes one step across.
    """
    along, across = tiles if raster == "m" else (tiles[1], tiles[0])
    first = index // (group * across) * group
    width = min(along - first, group)
    within = index % (group * across)
    i, j = first + within % width, within // width
    return (i, j) if raster == "m" else (j, i)
