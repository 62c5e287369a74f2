// Two finished neighbours of D in one register, for stmatrix.
#pragma once
#include "tile/epilogue.cuh"
#include "tile/wgmma_accumulators.cuh"

// Elements (row, col) and (row, col + 1), or (row + 1, col) if DOWN. What lies outside of D is never stored, so it
// takes C and bias of the last row and column: a load without a branch.
template <bool DOWN> __device__ __forceinline__ unsigned finish_pair(Pair pair, const Epilogue& epilogue, int row, int col) {
    constexpr int down = DOWN ? 1 : 0, right = 1 - down;
    const auto inside = [](int at, int extent) { return cfg::has_c || cfg::has_bias ? min(at, extent - 1) : at; };
    struct alignas(2 * sizeof(Out)) Finished { Out x, y; };
    const Finished finished{
        epilogue.apply(pair.x, inside(row, epilogue.m), inside(col, epilogue.n)),
        epilogue.apply(pair.y, inside(row + down, epilogue.m), inside(col + right, epilogue.n)),
    };
    return reinterpret_cast<const unsigned&>(finished);
}
