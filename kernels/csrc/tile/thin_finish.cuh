// The end of a tile whose warps split k and whose thin axis has at most 16 rows: the sums of all warps, [warp][thin]
// [wide + 4] in shared memory, are added up in warp order, then the splits, and stored. `wide` is the axis of D along
// the weights' rows. Comes after the config of a family, which gives the tile, the threads and weights_are_a.
#pragma once
#include "tile/epilogue.cuh"
#include "tile/split_k.cuh"

constexpr int sums_stride = cfg::tile_wide + 4; // NOTE: 4 words keep the four lanes of a row off each other's banks

template <int SLICES, class TEAM = WholeBlock> struct ThinFinish {
    static constexpr int elements = cfg::tile_wide * cfg::tile_thin;
    static constexpr int values = (elements + cfg::threads - 1) / cfg::threads; // of a thread
    Real value[values] = {};
    int begin = 0, end = elements; // those to store

    __device__ __forceinline__ void add_warps(const Real* sums) {
#pragma unroll
        for (int v = 0; v < values; ++v) {
            const int at = threadIdx.x + v * cfg::threads;
            const int wide = cfg::weights_are_a ? at / cfg::tile_n : at % cfg::tile_n;
            const int thin = cfg::weights_are_a ? at % cfg::tile_n : at / cfg::tile_n;
            if (at < elements)
#pragma unroll
                for (int w = 0; w < SLICES; ++w) value[v] += sums[(w * cfg::tile_thin + thin) * sums_stride + wide];
        }
    }

    // Adds up the splits and stores, in the block that comes last. The whole team calls it.
    __device__ __forceinline__ void store(const Epilogue& epilogue, int row0, int col0, void* workspace, int tile, int tiles,
                                          int split) {
        if constexpr (cfg::split_k > 1) {
            SplitK<values, cfg::threads, TEAM> reducer(workspace, tile, tiles);
            if (!reducer.reduce(value, threadIdx.x, true, split)) return;
        }
#pragma unroll
        for (int v = 0; v < values; ++v) {
            const int at = threadIdx.x + v * cfg::threads;
            const int row = row0 + at / cfg::tile_n, col = col0 + at % cfg::tile_n;
            if (at >= begin && at < end && row < epilogue.m && col < epilogue.n)
                epilogue.d[row * epilogue.ldd + col] = epilogue.apply(value[v], row, col);
        }
    }
};
