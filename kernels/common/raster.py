"""The raster order: which tile of D has which number; the arithmetic of ``kernels/common/raster.cuh``."""

from __future__ import annotations

AXES = ("m", "n")
RASTERS = (*AXES, "hilbert")


def raster_tile(
    index: int, tiles: tuple[int, int], raster: str, swizzle_size: int, snake: bool = False
) -> tuple[int, int]:
    """(row, column) of tile number ``index`` in a grid of (rows, columns) tiles.

    ``raster`` names the axis along which the tiles are cut into bands of ``swizzle_size``; the order takes
    the tiles of a band along that axis, then goes one step across. ``hilbert`` has bands along m and orders
    each whole ``swizzle_size`` x ``swizzle_size`` square (a power of two) along a Hilbert curve. With
    ``snake`` every other band is reversed.
    """
    along, across = (tiles[1], tiles[0]) if raster == "n" else tiles
    band, within = divmod(index, swizzle_size * across)
    first = band * swizzle_size
    width = min(along - first, swizzle_size)
    i, j = within % width, within // width
    if raster == "hilbert":
        corner = within // (swizzle_size * swizzle_size) * swizzle_size
        if width == swizzle_size and corner + swizzle_size <= across:
            i, j = hilbert(swizzle_size, within % (swizzle_size * swizzle_size))
            j += corner
    if snake and band % 2:
        j = across - 1 - j
    return (j, first + i) if raster == "n" else (first + i, j)


def hilbert(side: int, index: int) -> tuple[int, int]:
    """Point ``index`` of the Hilbert curve that fills a ``side`` x ``side`` square.

    The construction by quadrants is that of D. Hilbert, "Ueber die stetige Abbildung einer Linie auf ein
    Flaechenstueck" (1891): each level turns the curve of the level below.
    """
    x = y = 0
    extent = 1
    while extent < side:
        right = index // 2 & 1
        up = (index ^ right) & 1
        if not up:
            if right:
                x, y = extent - 1 - x, extent - 1 - y
            x, y = y, x
        x, y = x + extent * right, y + extent * up
        index //= 4
        extent *= 2
    return x, y
