// The shared memory of a block: ring, slice of the thin operand, sums, inbox, barriers; see stream.cu.
#pragma once
#include "stream_config.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mbarrier.cuh"
#include "tile/thin_finish.cuh"

extern __shared__ char smem[];

struct SharedMemory {
    static constexpr int box_bytes = cfg::tile_wide * cfg::panel_bytes, stage_bytes = cfg::stage_panels * box_bytes;
    static constexpr int ring_bytes = cfg::stages * stage_bytes;
    static constexpr int thin_bytes = cfg::thin_panels * cfg::tile_thin * cfg::panel_bytes;
    static constexpr int thin_stages = (cfg::thin_panels + cfg::stage_panels - 1) / cfg::stage_panels;
    static constexpr int warp_sums = cfg::tile_thin * sums_stride; // elements
    static constexpr int sums_bytes = cfg::warps * warp_sums * int(sizeof(Real));
    static constexpr int inbox_bytes = cfg::cluster_k > 1 ? 2 * cfg::elements * int(sizeof(Real)) : 0;
    static constexpr int barrier_bytes = 8 * (2 * cfg::stages + thin_stages + (cfg::cluster_k > 1 ? 2 : 0));
    static constexpr int bytes = ring_bytes + thin_bytes + sums_bytes + inbox_bytes + barrier_bytes;
    static_assert(box_bytes % 1024 == 0, "the swizzle repeats every 1024 bytes");
    unsigned base; // a multiple of 1024

    __device__ __forceinline__ unsigned panel(int stage, int index) const {
        return base + stage * stage_bytes + index * box_bytes;
    }
    __device__ __forceinline__ unsigned thin() const { return base + ring_bytes; }
    __device__ __forceinline__ Real* sums() const { return reals(ring_bytes + thin_bytes); }
    // What block `rank` of the cluster sends, in one of two places that are used in turn.
    __device__ __forceinline__ Real* inbox(int place, int rank) const {
        return reals(ring_bytes + thin_bytes + sums_bytes) + (place * cfg::cluster_k + rank) * cfg::own_elements;
    }
    __device__ __forceinline__ unsigned full(int stage) const { return barrier(stage); }
    __device__ __forceinline__ unsigned empty(int stage) const { return barrier(cfg::stages + stage); }
    __device__ __forceinline__ unsigned thin_full(int stage) const { return barrier(2 * cfg::stages + stage); }
    __device__ __forceinline__ unsigned arrived(int place) const { return barrier(2 * cfg::stages + thin_stages + place); }

    // Called by one lane.
    __device__ __forceinline__ void init() const {
        for (int stage = 0; stage < cfg::stages; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), cfg::warps);
        }
        for (int stage = 0; stage < thin_stages; ++stage) mbarrier_init(thin_full(stage), cfg::threads);
        if constexpr (cfg::cluster_k > 1)
            for (int place = 0; place < 2; ++place) mbarrier_init(arrived(place), 1);
        mbarrier_init_fence();
    }
    // Byte offset of 16-byte chunk `chunk` of 128-byte row `row`: TMA's 128-byte swizzle.
    static __device__ __forceinline__ unsigned swizzled(int row, int chunk) {
        return row * cfg::panel_bytes + ((chunk ^ (row & 7)) << 4);
    }

private:
    __device__ __forceinline__ Real* reals(int offset) const {
        return reinterpret_cast<Real*>(smem + (base - smem_address(smem)) + offset);
    }
    __device__ __forceinline__ unsigned barrier(int index) const { return base + (bytes - barrier_bytes) + index * 8; }
};
