// The thin operand: from memory to the slice that a block keeps.
#pragma once
#include "stream/memory.cuh"
#include "stream/work.cuh"

// The thin operand in memory.
struct ThinOperand {
    const In* data;
    long long stride, batch_stride;
    int rows, k;

    // The unit's rows and panels to shared memory, zeros where there are none; all threads.
    __device__ __forceinline__ void load_slice(unsigned to, const Unit& unit) const {
        constexpr int chunks = cfg::panel_bytes / 16, chunk_k = cfg::panel_k / chunks;
        const In* from = data + unit.batch * batch_stride;
        const int all = (unit.end - unit.begin) * cfg::tile_thin * chunks;
        for (int i = threadIdx.x; i < all; i += cfg::threads) {
            const int chunk = i % chunks, line = i / chunks;
            const int row = unit.row0 + line % cfg::tile_thin;
            const int column = (unit.begin + line / cfg::tile_thin) * cfg::panel_k + chunk * chunk_k;
            const bool inside = row < rows && column < k;
            cp_async<16>(to + SharedMemory::swizzled(line, chunk), from + (inside ? row * stride + column : 0), inside);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }
};
