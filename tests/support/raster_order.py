"""The raster order, which tile of D has which number: the arithmetic of ``kernels/common/raster.cuh``."""

from __future__ import annotations


def raster_tile(
    index: int, tiles: tuple[int, int], raster: str, swizzle_size: int, snake: bool = False
) -> tuple[int, int]:
    """(row, column) of tile number ``index`` in a grid of (rows, columns) tiles.

    The tiles are cut into strips of ``swizzle_size`` along axis ``raster``; the order takes the tiles of a
    strip along that axis, then goes one step across. With ``snake`` every other strip is reversed.
    """
    along, across = (tiles[1], tiles[0]) if raster == "n" else tiles
    strip, within = divmod(index, swizzle_size * across)
    first = strip * swizzle_size
    width = min(along - first, swizzle_size)
    i, j = within % width, within // width
    if snake and strip % 2:
        j = across - 1 - j
    return (j, first + i) if raster == "n" else (first + i, j)
