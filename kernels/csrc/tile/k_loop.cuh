// The loop over k: which k tiles a split sums, and the ring of shared-memory stages they pass through.
#pragma once
#include "config.cuh"
#include "ptx/cp_async.cuh"

struct KShare { int first, count; }; // in k tiles; the last splits may have none

__device__ __forceinline__ KShare k_share(int k, int split) {
    const int all = (k + cfg::tile_k - 1) / cfg::tile_k;
    const int share = (all + cfg::split_k - 1) / cfg::split_k;
    const int first = min(split * share, all);
    return {first, min(share, all - first)};
}

// Calls load(tile, stage), which writes k tile `tile` into a stage, and multiply(stage) for every k tile
// in order. One stage: load, wait, multiply. More: DEPTH - 1 tiles are on their way while one is
// multiplied; a group is committed even where no tile is left, so that the number of groups in flight
// does not depend on k. On return the block has read and written its last stage.
template <int DEPTH, class Load, class Multiply>
__device__ __forceinline__ void run_stages(int k_tiles, const Load& load, const Multiply& multiply) {
    if constexpr (DEPTH == 1) {
        for (int tile = 0; tile < k_tiles; ++tile) {
            __syncthreads();
            load(tile, 0);
            __syncthreads();
            multiply(0);
        }
    } else {
        const auto prefetch = [&](int tile, int stage) {
            if (tile < k_tiles) load(tile, stage);
            cp_async_commit();
        };
        for (int i = 0; i < DEPTH - 1; ++i) prefetch(i, i);
        int read = 0, write = DEPTH - 1;
        for (int tile = 0; tile < k_tiles; ++tile) {
            cp_async_wait<DEPTH - 2>();
            __syncthreads();
            prefetch(tile + DEPTH - 1, write);
            multiply(read);
            write = read;
            read = read + 1 == DEPTH ? 0 : read + 1;
        }
        cp_async_wait<0>();
    }
    __syncthreads();
}
