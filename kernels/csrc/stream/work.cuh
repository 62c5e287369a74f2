// Work: the units that a block walks. Loads and products walk the same list, each on its own.
#pragma once
#include "stream_config.cuh"

// One block's work between two visits to D: a split of a tile, or a block's share of one, panels [begin, end) of k.
struct Unit {
    int wide, combo, split, tile, batch, row0, begin, end; // row0: of the thin operand
};

struct Work {
    int panels, wide_tiles, thin_tiles, combos, units;
    int first, step, rank; // of the block's cluster in the list, and of the block in its cluster

    __device__ __forceinline__ Work(int wide, int thin, int k, int batch, int rank)
        : panels((k + cfg::panel_k - 1) / cfg::panel_k), wide_tiles((wide + cfg::tile_wide - 1) / cfg::tile_wide),
          thin_tiles((thin + cfg::tile_thin - 1) / cfg::tile_thin), combos(cfg::split_k * thin_tiles * batch),
          units(wide_tiles * combos), first(blockIdx.x / cfg::cluster_k), step(gridDim.x / cfg::cluster_k), rank(rank) {}

    __device__ __forceinline__ Unit unit(int index) const {
        constexpr int shares = cfg::split_k * cfg::cluster_k;
        const int wide = index / combos, combo = index - wide * combos;
        const int split = combo % cfg::split_k, column = combo / cfg::split_k, batch = column / thin_tiles;
        const int share = split * cfg::cluster_k + rank;
        return {wide,
                combo,
                split,
                column * wide_tiles + wide,
                batch,
                (column - batch * thin_tiles) * cfg::tile_thin,
                panels * share / shares,
                panels * (share + 1) / shares};
    }
};
