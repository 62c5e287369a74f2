// Which tile of D comes at a place in the walk over all tiles. The tiles are cut in bands of GROUP rows
// (along m) or columns (along n) of tiles, so that blocks that run together share operands in the L2:
//   RASTER 0, 1   the walk takes the tiles of a band along that axis, then goes one step across
//   RASTER 2      bands along m; within each GROUP x GROUP square (GROUP a power of two) a Hilbert curve
// With RASTER_SNAKE every other band is walked backwards. Mirrored by kernels/raster.py.
#pragma once
#include "config.cuh"

struct TileCoord { int m, n; };

// Place `index` of the Hilbert curve that fills a SIDE x SIDE square.
template <int SIDE> __device__ __forceinline__ TileCoord hilbert(int index) {
    int x = 0, y = 0;
#pragma unroll
    for (int s = 1; s < SIDE; s *= 2) {
        const int right = index / 2 & 1, up = (index ^ right) & 1;
        if (!up) {
            if (right) x = s - 1 - x, y = s - 1 - y;
            const int swapped = x;
            x = y, y = swapped;
        }
        x += s * right, y += s * up;
        index /= 4;
    }
    return {x, y};
}

__device__ __forceinline__ TileCoord raster_tile(int index, int tiles_m, int tiles_n) {
    const int along = cfg::raster == 1 ? tiles_n : tiles_m;
    const int across = cfg::raster == 1 ? tiles_m : tiles_n;
    const int band_size = cfg::group * across;
    const int band = index / band_size, first = band * cfg::group;
    const int width = min(along - first, cfg::group);
    const int within = index - band * band_size;
    int i = within % width, j = within / width;
    if constexpr (cfg::raster == 2) {
        const int square = cfg::group * cfg::group, corner = within / square * cfg::group;
        if (width == cfg::group && corner + cfg::group <= across) {
            const TileCoord place = hilbert<cfg::group>(within % square);
            i = place.m, j = corner + place.n;
        }
    }
    if (cfg::raster_snake && band % 2) j = across - 1 - j;
    return cfg::raster == 1 ? TileCoord{j, first + i} : TileCoord{first + i, j};
}
