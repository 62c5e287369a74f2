// Two finished neighbours of D in one register, for stmatrix.
#pragma once
#include "tile/epilogue.cuh"
#include "tile/wgmma_accumulators.cuh"

// Elements (row, col) and (row, col + 1), or (row + 1, col) if DOWN; C is read inside of D only. What lies outside is
// never stored, so without a C it takes the bias of the last column: a load without a branch. Give it
// Epilogue::pinned().
template <bool DOWN> __device__ __forceinline__ unsigned finish_pair(Pair pair, const Epilogue& epilogue, int row, int col) {
    constexpr int down = DOWN ? 1 : 0, right = 1 - down;
    struct alignas(2 * sizeof(Out)) Finished { Out x, y; };
    Finished finished;
    if constexpr (cfg::has_c) {
        const bool x_inside = row < epilogue.m && col < epilogue.n;
        const bool y_inside = row + down < epilogue.m && col + right < epilogue.n;
        finished = {x_inside ? epilogue.apply(pair.x, row, col) : Out{},
                    y_inside ? epilogue.apply(pair.y, row + down, col + right) : Out{}};
    } else {
        const int last = epilogue.n - 1;
        finished = {epilogue.apply(pair.x, row, min(col, last)), epilogue.apply(pair.y, row + down, min(col + right, last))};
    }
    return reinterpret_cast<const unsigned&>(finished);
}
