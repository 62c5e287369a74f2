// The raster order: which tile of D has number `index`. The grid of tiles is cut into bands of SWIZZLE_SIZE rows (along m)
// or columns (along n) of tiles, so that CTAs that run together share operands in the L2:
//   RASTER 0, 1   the tiles of a band in order along that axis, then one step across
//   RASTER 2      bands along m; within each SWIZZLE_SIZE x SWIZZLE_SIZE square (a power of two) a Hilbert curve
// With RASTER_SNAKE every other band is reversed. Mirrored by kernels/common/raster.py.
#pragma once
#include "common/config.cuh"

struct TileCoord { int m, n; };

// Point `index` of the Hilbert curve that fills a SIDE x SIDE square.
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
    const int band_size = cfg::swizzle_size * across;
    const int band = index / band_size, first = band * cfg::swizzle_size;
    const int width = min(along - first, cfg::swizzle_size);
    const int within = index - band * band_size;
    int i = within % width, j = within / width;
    if constexpr (cfg::raster == 2) {
        const int square = cfg::swizzle_size * cfg::swizzle_size, corner = within / square * cfg::swizzle_size;
        if (width == cfg::swizzle_size && corner + cfg::swizzle_size <= across) {
            const TileCoord point = hilbert<cfg::swizzle_size>(within % square);
            i = point.m, j = corner + point.n;
        }
    }
    if (cfg::raster_snake && band % 2) j = across - 1 - j;
    return cfg::raster == 1 ? TileCoord{j, first + i} : TileCoord{first + i, j};
}
