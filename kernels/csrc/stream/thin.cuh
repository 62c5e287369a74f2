// The thin operand: from memory to the slice that a block keeps.
#pragma once
#include "stream/memory.cuh"
#include "stream/work.cuh"

// The thin operand in memory.
struct ThinOperand {
    const In* data;
    long long stride, batch_stride;
    int rows, k;

    // Asks for the unit's rows and panels, zeros where there are none, stage by stage as they will be multiplied;
    // thin_full() of each stage tells when they are there. All threads that multiply.
    __device__ __forceinline__ void load_slice(const SharedMemory& shared, const Unit& unit) const {
        constexpr int chunks = cfg::panel_bytes / 16, chunk_k = cfg::panel_k / chunks;
        constexpr int stage_chunks = cfg::stage_panels * cfg::tile_thin * chunks;
        const In* from = data + unit.batch * batch_stride;
        const int all = (unit.end - unit.begin) * cfg::tile_thin * chunks;
        for (int stage = 0; stage < SharedMemory::thin_stages; ++stage) {
            const int end = min(all, (stage + 1) * stage_chunks);
            for (int i = stage * stage_chunks + threadIdx.x; i < end; i += cfg::threads) {
                const int chunk = i % chunks, line = i / chunks;
                const int row = unit.row0 + line % cfg::tile_thin;
                const int column = (unit.begin + line / cfg::tile_thin) * cfg::panel_k + chunk * chunk_k;
                const bool inside = row < rows && column < k;
                const unsigned to = shared.thin() + SharedMemory::swizzled(line, chunk);
                cp_async<16>(to, from + (inside ? row * stride + column : 0), inside);
            }
            cp_async_arrive(shared.thin_full(stage));
        }
    }
};
