// The raster order: which tile of D has number `index`. The grid of tiles is cut into strips of SWIZZLE_SIZE rows (along m)
// or columns (along n) of tiles, so that CTAs that run together share operands in the L2:
// RASTER 0 and 1 take the SWIZZLE_SIZE tiles of a strip along m and n, then go one step across. With RASTER_SNAKE every other
// strip is reversed. Mirrored by tests/unit/kernels/test_raster.py.
#pragma once
#include "common/config.cuh"

struct TileCoord { int m, n; };

// NOTE: a kernel loads nothing before it knows its tile, and a division by a variable takes some 0.1 us then; so only a CTA
// outside the first strip divides by one, and a second time where its strip is narrower than the others.
__device__ __forceinline__ TileCoord raster_tile(int index, int tiles_m, int tiles_n) {
    const int along = cfg::raster == 1 ? tiles_n : tiles_m;
    const int across = cfg::raster == 1 ? tiles_m : tiles_n;
    const int strip_tiles = cfg::swizzle_size * across;
    const int strip = index < strip_tiles ? 0 : index / strip_tiles, first = strip * cfg::swizzle_size;
    const int within = index - strip * strip_tiles, width = along - first;
    int i = 0, j = 0;
    if (width >= cfg::swizzle_size)
        i = unsigned(within) % cfg::swizzle_size, j = unsigned(within) / cfg::swizzle_size;
    else
        i = within % width, j = within / width;
    if (cfg::raster_snake && strip % 2) j = across - 1 - j;
    return cfg::raster == 1 ? TileCoord{j, first + i} : TileCoord{first + i, j};
}
