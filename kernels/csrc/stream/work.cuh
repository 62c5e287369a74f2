// Work: the units that a block walks. Loads and products walk the same list, each on its own.
#pragma once
#include "stream_config.cuh"

// One block's work between two visits to D: a split of a tile, panels [begin, end) of k.
struct Unit {
    int wide, combo, split, tile, batch, row0, begin, end; // row0: of the thin operand
};

struct Work {
    int panels, wide_tiles, thin_tiles, combos, units;

    __device__ __forceinline__ Work(int wide, int thin, int k, int batch)
        : panels((k + cfg::panel_k - 1) / cfg::panel_k), wide_tiles((wide + cfg::tile_wide - 1) / cfg::tile_wide),
          thin_tiles((thin + cfg::tile_thin - 1) / cfg::tile_thin), combos(cfg::split_k * thin_tiles * batch),
          units(wide_tiles * combos) {}

    __device__ __forceinline__ Unit unit(int index) const {
        const int wide = index / combos, combo = index - wide * combos;
        const int split = combo % cfg::split_k, column = combo / cfg::split_k, batch = column / thin_tiles;
        return {wide,
                combo,
                split,
                column * wide_tiles + wide,
                batch,
                (column - batch * thin_tiles) * cfg::tile_thin,
                panels * split / cfg::split_k,
                panels * (split + 1) / cfg::split_k};
    }
};
