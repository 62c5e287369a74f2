// Split-K: every CTA of a tile writes its partials to the workspace; the last CTA to arrive adds them up in split order, so
// that the result does not depend on which one is last.
// Workspace: one counter a tile (zero before and after the launch), then partials [tile][split][value][thread].
#pragma once
#include "common/config.cuh"

template <int VALUES, int THREADS> struct SplitK {
    unsigned* counter;
    ElementAccumulator* partials; // of this tile
    static constexpr int cta_values = VALUES * THREADS;

    __device__ __forceinline__ SplitK(void* workspace, int tile, int tiles) {
        counter = static_cast<unsigned*>(workspace) + tile;
        const long long zeroed = (tiles * 4LL + 255) / 256 * 256;
        partials = reinterpret_cast<ElementAccumulator*>(static_cast<char*>(workspace) + zeroed) +
                   static_cast<long long>(tile) * cfg::split_k * cta_values;
    }

    // The steps of reduce(), for CTAs that do not hold their partials in registers: store every partial, then arrive, and
    // read every sum if arrive() returns true.
    __device__ __forceinline__ void store_partial(ElementAccumulator value, int i, int thread, int split) {
        partials[split * cta_values + i * THREADS + thread] = value;
    }
    // True in the CTA that must finish the tile. All threads of the CTA call it.
    __device__ __forceinline__ bool arrive() {
        __threadfence();
        __syncthreads();
        __shared__ bool last;
        if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == cfg::split_k - 1;
        __syncthreads();
        if (!last) return false;
        __threadfence();
        if (threadIdx.x == 0) *counter = 0;
        return true;
    }
    __device__ __forceinline__ ElementAccumulator sum(int i, int thread) const {
        ElementAccumulator total = 0;
        for (int s = 0; s < cfg::split_k; ++s) total += __ldcg(partials + s * cta_values + i * THREADS + thread);
        return total;
    }

    // True in the CTA that must finish the tile; `values` then hold the totals of all splits. All threads of the CTA
    // call it; threads without accumulators pass active = false, and `thread` is ignored.
    __device__ __forceinline__ bool reduce(ElementAccumulator (&values)[VALUES], int thread, bool active, int split) {
        if (active) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) store_partial(values[i], i, thread, split);
        }
        if (!arrive()) return false;
        if (!active) return true;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) values[i] = 0;
        for (int s = 0; s < cfg::split_k; ++s) {
            const ElementAccumulator* from = partials + s * cta_values + thread;
#pragma unroll
            for (int i = 0; i < VALUES; ++i) values[i] += __ldcg(from + i * THREADS);
        }
        return true;
    }
};
