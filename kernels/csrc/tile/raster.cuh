// Which tile of D a block computes. Tiles are walked in groups of GROUP rows (along m) or columns
// (along n) of tiles: the walk takes the tiles of a group along that axis, then goes one step across, so
// that blocks that run together share operands in the L2. Mirrored by kernels/raster.py.
#pragma once
#include "config.cuh"

struct TileCoord { int m, n; };

__device__ __forceinline__ TileCoord raster_tile(int index, int tiles_m, int tiles_n) {
    const int along = cfg::raster == 0 ? tiles_m : tiles_n;
    const int across = cfg::raster == 0 ? tiles_n : tiles_m;
    const int group_size = cfg::group * across;
    const int first = index / group_size * cfg::group;
    const int width = min(along - first, cfg::group);
    const int within = index % group_size;
    const int i = first + within % width, j = within / width;
    return cfg::raster == 0 ? TileCoord{i, j} : TileCoord{j, i};
}
