// The shared memory of a block: ring, slice of the thin operand, sums, barriers; see stream.cu.
#pragma once
#include "stream_config.cuh"
#include "ptx/cp_async.cuh"
#include "tile/thin_finish.cuh"

extern __shared__ char smem[];

struct SharedMemory {
    static constexpr int box_bytes = cfg::tile_wide * cfg::panel_bytes, stage_bytes = cfg::stage_panels * box_bytes;
    static constexpr int ring_bytes = cfg::stages * stage_bytes;
    static constexpr int thin_bytes = cfg::thin_panels * cfg::tile_thin * cfg::panel_bytes;
    static constexpr int warp_sums = cfg::tile_thin * sums_stride; // elements
    static constexpr int sums_bytes = cfg::warps * warp_sums * int(sizeof(Real));
    static_assert(box_bytes % 1024 == 0, "the swizzle repeats every 1024 bytes");
    unsigned base; // a multiple of 1024

    __device__ __forceinline__ unsigned panel(int stage, int index) const {
        return base + stage * stage_bytes + index * box_bytes;
    }
    __device__ __forceinline__ unsigned thin() const { return base + ring_bytes; }
    __device__ __forceinline__ Real* sums() const {
        return reinterpret_cast<Real*>(smem + (base - smem_address(smem)) + ring_bytes + thin_bytes);
    }
    __device__ __forceinline__ unsigned full(int stage, int warp) const {
        return thin() + thin_bytes + sums_bytes + (stage * cfg::warps + warp) * 8;
    }
    // Byte offset of 16-byte chunk `chunk` of 128-byte row `row`: TMA's 128-byte swizzle.
    static __device__ __forceinline__ unsigned swizzled(int row, int chunk) {
        return row * cfg::panel_bytes + ((chunk ^ (row & 7)) << 4);
    }
};
