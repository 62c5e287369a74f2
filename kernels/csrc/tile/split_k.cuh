// Split-K with float partials: every block of a tile writes its sums to the workspace; the last one to
// arrive adds them up in split order, so the result does not depend on who was last.
// Workspace: one counter a tile (zero before and after the launch), then partials
// [tile][split][value][thread].
#pragma once
#include "config.cuh"

struct WholeBlock {
    static __device__ __forceinline__ void sync() { __syncthreads(); }
};

// TEAM::sync() is a barrier of those threads that call arrive() or reduce(): of all that a block has, or of those
// that are left where some have another role.
template <int VALUES, int THREADS, class TEAM = WholeBlock> struct SplitK {
    unsigned* counter;
    Real* partials; // of this tile
    static constexpr int block_values = VALUES * THREADS;

    __device__ __forceinline__ SplitK(void* workspace, int tile, int tiles) {
        counter = static_cast<unsigned*>(workspace) + tile;
        const long long zeroed = (tiles * 4LL + 255) / 256 * 256;
        partials = reinterpret_cast<Real*>(static_cast<char*>(workspace) + zeroed) +
                   static_cast<long long>(tile) * cfg::split_k * block_values;
    }

    // The parts of a reduction, for blocks that do not hold their sums in registers: put every value, then
    // arrive, and where that is true take every sum.
    __device__ __forceinline__ void put(Real value, int i, int thread, int split) {
        partials[split * block_values + i * THREADS + thread] = value;
    }
    // True in the block that must finish the tile. The whole team calls it, with thread 0 of the block among them.
    __device__ __forceinline__ bool arrive() {
        __threadfence();
        TEAM::sync();
        __shared__ bool last;
        if (threadIdx.x == 0) last = atomicAdd(counter, 1u) == cfg::split_k - 1;
        TEAM::sync();
        if (!last) return false;
        __threadfence();
        if (threadIdx.x == 0) *counter = 0;
        return true;
    }
    __device__ __forceinline__ Real sum(int i, int thread) const {
        Real total = 0;
        for (int s = 0; s < cfg::split_k; ++s) total += __ldcg(partials + s * block_values + i * THREADS + thread);
        return total;
    }

    // True in the block that must finish the tile; `values` then hold the whole sum. The whole
    // team calls it; those that hold no accumulators pass active = false and thread is ignored.
    __device__ __forceinline__ bool reduce(Real (&values)[VALUES], int thread, bool active, int split) {
        if (active) {
#pragma unroll
            for (int i = 0; i < VALUES; ++i) put(values[i], i, thread, split);
        }
        if (!arrive()) return false;
        if (!active) return true;
#pragma unroll
        for (int i = 0; i < VALUES; ++i) values[i] = 0;
        for (int s = 0; s < cfg::split_k; ++s) {
            const Real* from = partials + s * block_values + thread;
#pragma unroll
            for (int i = 0; i < VALUES; ++i) values[i] += __ldcg(from + i * THREADS);
        }
        return true;
    }
};
