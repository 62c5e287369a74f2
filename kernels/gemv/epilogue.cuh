// The end of a GEMV tile, whose warps partition k: adds up the partials of all warps, [warp][activation row]
// [weight row + 4] in shared memory, in warp order, and stores D. A family includes it after its config,
// which gives the tile (weight_rows x activation_rows), the threads and weights_are_a.
#pragma once
#include "common/epilogue.cuh"

constexpr int partial_stride = cfg::weight_rows + 4; // NOTE: 4 words keep the four lanes of a row on different banks

template <int PARTIALS> struct GemvEpilogue {
    static constexpr int elements = cfg::weight_rows * cfg::activation_rows;
    static constexpr int values = (elements + cfg::threads - 1) / cfg::threads; // of a thread
    ElementAccumulator value[values] = {};
    int begin = 0, end = elements; // the elements to store

    __device__ __forceinline__ void add_warps(const ElementAccumulator* partials) {
#pragma unroll
        for (int v = 0; v < values; ++v) {
            const int at = threadIdx.x + v * cfg::threads;
            const int weight = cfg::weights_are_a ? at / cfg::tile_n : at % cfg::tile_n;
            const int activation = cfg::weights_are_a ? at % cfg::tile_n : at / cfg::tile_n;
            if (at < elements)
#pragma unroll
                for (int w = 0; w < PARTIALS; ++w)
                    value[v] += partials[(w * cfg::activation_rows + activation) * partial_stride + weight];
        }
    }

    __device__ __forceinline__ void store(const Epilogue& epilogue, int row0, int col0) const {
#pragma unroll
        for (int v = 0; v < values; ++v) {
            const int at = threadIdx.x + v * cfg::threads;
            const int row = row0 + at / cfg::tile_n, col = col0 + at % cfg::tile_n;
            if (at >= begin && at < end && row < epilogue.m && col < epilogue.n)
                epilogue.d[row * epilogue.ldd + col] = epilogue.apply(value[v], row, col);
        }
    }
};
