// Two finished neighbours of D in one register, for stmatrix.
#pragma once
#include "tile/epilogue.cuh"
#include "tile/wgmma_accumulators.cuh"

// Elements (row, col) and (row, col + 1), or (row + 1, col) if DOWN; C and bias are read inside of D only.
template <bool DOWN> __device__ __forceinline__ unsigned finish_pair(Pair pair, const Epilogue& epilogue, int row, int col) {
    constexpr bool reads_memory = cfg::has_c || cfg::has_bias;
    constexpr int down = DOWN ? 1 : 0, right = 1 - down;
    const bool x_inside = !reads_memory || (row < epilogue.m && col < epilogue.n);
    const bool y_inside = !reads_memory || (row + down < epilogue.m && col + right < epilogue.n);
    struct alignas(2 * sizeof(Out)) Finished { Out x, y; };
    const Finished finished{x_inside ? epilogue.apply(pair.x, row, col) : Out{},
                            y_inside ? epilogue.apply(pair.y, row + down, col + right) : Out{}};
    return reinterpret_cast<const unsigned&>(finished);
}
