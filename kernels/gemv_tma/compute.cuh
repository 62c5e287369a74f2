// From shared memory to finished accumulators: the products of a warp, and the reduction over a cluster.
#pragma once
#include "common/ptx/control.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/mma.cuh"
#include "gemv_tma/layout.cuh"

// A warp's accumulators of a tile. Weights are the 16 rows of an mma, activations its 8 columns.
struct Accumulator {
    static constexpr int k_steps = cfg::chunk_bytes / 32;
    // An mma waits for the result of the one before, so small tiles alternate between independent accumulators.
    static constexpr int chains = cfg::warp_tiles * cfg::mma_columns < 4 ? 4 / (cfg::warp_tiles * cfg::mma_columns) : 1;
    ElementAccumulator value[chains][cfg::warp_tiles][cfg::mma_columns][4] = {};

    // Adds the product of a k chunk of weights and k chunk `index` of the activations.
    __device__ __forceinline__ void multiply(unsigned weights, unsigned activations, int index) {
        unsigned a[k_steps][cfg::warp_tiles][4], b[k_steps][cfg::mma_columns][2];
        load_weights(a, weights);
        load_activations(b, activations, index * cfg::activation_rows);
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
                for (int j = 0; j < cfg::mma_columns; ++j) Mma<In>::full(value[s % chains][i][j], a[s][i], b[s][j]);
    }
    __device__ __forceinline__ void store(ElementAccumulator* partials) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
            for (int j = 0; j < cfg::mma_columns; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int row = j * 8 + 2 * t + e % 2;
                    if (row < cfg::activation_rows) partials[row * partial_stride + i * 16 + g + e / 2 * 8] = total(i, j, e);
                }
    }

private:
    __device__ __forceinline__ ElementAccumulator total(int i, int j, int e) const {
        ElementAccumulator sum = value[0][i][j][e];
#pragma unroll
        for (int c = 1; c < chains; ++c) sum += value[c][i][j][e];
        return sum;
    }
    static __device__ __forceinline__ void load_weights(unsigned (&a)[k_steps][cfg::warp_tiles][4], unsigned weights) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
                ldmatrix_x4(a[s][i], weights + i * 16 * cfg::chunk_bytes + SharedMemory::swizzled(lane % 16, 2 * s + lane / 16));
    }
    // NOTE: fewer than 8 activation rows repeat in the columns beyond them, which are never stored.
    static __device__ __forceinline__ void load_activations(unsigned (&b)[k_steps][cfg::mma_columns][2], unsigned activations,
                                                            int line) {
        const int lane = threadIdx.x % 32;
        constexpr int steps = 2 / cfg::mma_columns; // of one ldmatrix
#pragma unroll
        for (int s = 0; s < k_steps; s += steps) {
            const int row = steps == 2 ? lane % cfg::activation_rows : lane % 8 + lane / 16 * 8;
            const int vector = 2 * s + (steps == 2 ? lane / 8 : lane / 8 % 2);
            unsigned r[4];
            ldmatrix_x4(r, activations + SharedMemory::swizzled(line + row, vector));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                unsigned(&to)[2] = steps == 2 ? b[s + i][0] : b[s][i];
                to[0] = r[2 * i], to[1] = r[2 * i + 1];
            }
        }
    }
};

// Adds up a tile over the k partitions of a cluster: each CTA receives its part of the tile from the others, through
// distributed shared memory. One object a thread; all threads that multiply meet between two calls of run(). NOTE: two
// inboxes alternate. A CTA that writes to an inbox again has received everything that the others sent to the second inbox,
// which they did after they had read the first.
class ClusterReduction {
public:
    __device__ __forceinline__ ClusterReduction(const SharedMemory& shared, int rank) : shared(shared), rank(rank) {}

    // Completes the values of this CTA's part of the tile, and limits the epilogue to that part.
    template <class TileEpilogue> __device__ __forceinline__ void run(TileEpilogue& epilogue) {
        const int buffer = calls & 1;
        epilogue.begin = rank * cfg::own_elements, epilogue.end = epilogue.begin + cfg::own_elements;
        if (threadIdx.x == 0) mbarrier_arrive_expect(shared.received(buffer), others * int(sizeof(ElementAccumulator)));
#pragma unroll
        for (int v = 0; v < TileEpilogue::values; ++v) {
            const int at = threadIdx.x + v * cfg::threads, owner = at / cfg::own_elements;
            if (at < cfg::elements && owner != rank) send(buffer, owner, at - owner * cfg::own_elements, epilogue.value[v]);
        }
#pragma unroll
        for (int v = 0; v < TileEpilogue::values; ++v) {
            const int at = threadIdx.x + v * cfg::threads - epilogue.begin;
            if (at >= 0 && at < cfg::own_elements) epilogue.value[v] = total(buffer, at, epilogue.value[v]);
        }
        ++calls;
    }

private:
    static constexpr int others = cfg::elements - cfg::own_elements; // elements that this CTA receives
    const SharedMemory& shared;
    int rank, calls = 0;

    __device__ __forceinline__ void send(int buffer, int owner, int at, ElementAccumulator value) const {
        const unsigned to = smem_address(shared.inbox(buffer, rank) + at);
        const unsigned received = cluster_address(shared.received(buffer), owner);
        store_remote(cluster_address(to, owner), reinterpret_cast<const unsigned&>(value), received);
    }
    // Adds in the order of k, so that the result does not depend on which CTA adds.
    __device__ __forceinline__ ElementAccumulator total(int buffer, int at, ElementAccumulator own) const {
        mbarrier_wait(shared.received(buffer), calls >> 1 & 1);
        ElementAccumulator sum = 0;
#pragma unroll
        for (int r = 0; r < cfg::cluster_k; ++r) sum += r == rank ? own : shared.inbox(buffer, r)[at];
        return sum;
    }
};
