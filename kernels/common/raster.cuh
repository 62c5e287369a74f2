// The raster order: which tile of D has number `index`. The grid of tiles is cut into strips of SWIZZLE_SIZE rows (along m)
// or columns (along n) of tiles, so that CTAs that run together share operands in the L2:
// RASTER 0 and 1 take the SWIZZLE_SIZE tiles of a strip along m and n, then go one step across. With RASTER_SNAKE every other
// strip is reversed. Mirrored by tests/unit/kernels/test_raster.py.
#pragma once
#include "common/config.cuh"

struct TileCoord { int m, n; };

// ONE_DIVISION saves a division where strips are one tile wide, for kernels so short that it counts.
template <bool ONE_DIVISION = false> __device__ __forceinline__ TileCoord raster_tile(int index, int tiles_m, int tiles_n) {
    const int along = cfg::raster == 1 ? tiles_n : tiles_m;
    const int across = cfg::raster == 1 ? tiles_m : tiles_n;
    const int strip_tiles = cfg::swizzle_size * across;
    const int strip = index / strip_tiles, first = strip * cfg::swizzle_size;
    const int width = ONE_DIVISION && cfg::swizzle_size == 1 ? 1 : min(along - first, cfg::swizzle_size);
    const int within = index - strip * strip_tiles;
    const int i = within % width;
    int j = within / width;
    if (cfg::raster_snake && strip % 2) j = across - 1 - j;
    return cfg::raster == 1 ? TileCoord{j, first + i} : TileCoord{first + i, j};
}
