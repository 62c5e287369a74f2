// A ring of shared-memory stages that TMA fills and consumers empty: DEPTH x (A tile | B tile), then DEPTH barriers `full` and
// DEPTH barriers `empty`.
#pragma once
#include "common/ptx/mbarrier.cuh"

template <int DEPTH, int A_BYTES, int B_BYTES> struct Ring {
    static constexpr int stages = DEPTH;
    static constexpr int stage_bytes = A_BYTES + B_BYTES;
    static constexpr int tile_bytes = DEPTH * stage_bytes;
    static constexpr int bytes = tile_bytes + 16 * DEPTH;
    unsigned base; // shared address of stage 0, a multiple of 1024

    __device__ __forceinline__ unsigned tile_a(int stage) const { return base + stage * stage_bytes; }
    __device__ __forceinline__ unsigned tile_b(int stage) const { return tile_a(stage) + A_BYTES; }
    __device__ __forceinline__ unsigned full(int stage) const { return base + tile_bytes + stage * 8; }
    __device__ __forceinline__ unsigned empty(int stage) const { return full(DEPTH + stage); }

    // Called by one lane. A stage is empty after `readers` arrivals.
    __device__ __forceinline__ void init(int readers) const {
        for (int stage = 0; stage < DEPTH; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), readers);
        }
        mbarrier_init_fence();
    }
};

// A position in the ring: the stage, and the parity of its barriers' phase, which flips on each pass through the ring.
template <int DEPTH> struct PipelineState {
    int stage = 0;
    unsigned phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == DEPTH) stage = 0, phase ^= 1;
    }
    __device__ __forceinline__ void advance(int count) {
        const int passed = (stage + count) / DEPTH;
        stage += count - passed * DEPTH;
        phase ^= passed & 1;
    }
};
