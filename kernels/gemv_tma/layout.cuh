// The work tiles of a CTA, and the layout of its shared memory.
#pragma once
#include "gemv_tma/config.cuh"
#include "gemv/epilogue.cuh"
#include "common/pipeline.cuh"
#include "common/ptx/load_store.cuh"
#include "common/ptx/mbarrier.cuh"

using RingState = PipelineState<cfg::stages>;

// The unit of work of a CTA: the k partition of its rank in the cluster, k chunks [begin, end), of one tile of D. Work tiles
// of the same `slice` need the same activations.
struct WorkTile {
    int weight_tile, slice, batch, activation_row, begin, end;
};

// The list of work tiles. Producer and consumers iterate over it independently: the cluster takes number
// blockIdx.x / CLUSTER_K, + gridDim.x / CLUSTER_K, .. of (weight tile, slice), the slice fastest.
struct Scheduler {
    int chunks, weight_tiles, activation_tiles, slices, work_tiles;
    int first, step, rank; // rank: of the CTA in its cluster

    __device__ __forceinline__ Scheduler(int weight_rows, int activation_rows, int k, int batch, int rank)
        : chunks((k + cfg::chunk_k - 1) / cfg::chunk_k),
          weight_tiles((weight_rows + cfg::weight_rows - 1) / cfg::weight_rows),
          activation_tiles((activation_rows + cfg::activation_rows - 1) / cfg::activation_rows),
          slices(activation_tiles * batch), work_tiles(weight_tiles * slices),
          first(blockIdx.x / cfg::cluster_k), step(gridDim.x / cfg::cluster_k), rank(rank) {}

    __device__ __forceinline__ WorkTile work_tile(int index) const {
        const int weight_tile = slices == 1 ? index : index / slices, slice = index - weight_tile * slices;
        const int batch = slice < activation_tiles ? 0 : slice / activation_tiles;
        return {weight_tile,
                slice,
                batch,
                (slice - batch * activation_tiles) * cfg::activation_rows,
                chunks * rank / cfg::cluster_k,
                chunks * (rank + 1) / cfg::cluster_k};
    }
};

extern __shared__ char smem[];

// The shared memory of a CTA, in the order of its members; the formula is in gemv_tma/kernel.cu.
struct SharedMemory {
    static constexpr int box_bytes = cfg::weight_rows * cfg::chunk_bytes, stage_bytes = cfg::stage_chunks * box_bytes;
    static constexpr int ring_bytes = cfg::stages * stage_bytes;
    static constexpr int activation_bytes = cfg::activation_k_chunks * cfg::activation_rows * cfg::chunk_bytes;
    static constexpr int activation_stages = (cfg::activation_k_chunks + cfg::stage_chunks - 1) / cfg::stage_chunks;
    static constexpr int warp_elements = cfg::activation_rows * partial_stride; // partials of a warp
    static constexpr int partial_bytes = cfg::warps * warp_elements * int(sizeof(ElementAccumulator));
    static constexpr int inbox_bytes = cfg::cluster_k > 1 ? 2 * cfg::elements * int(sizeof(ElementAccumulator)) : 0;
    static constexpr int barrier_bytes = 8 * (2 * cfg::stages + activation_stages + (cfg::cluster_k > 1 ? 2 : 0));
    static constexpr int bytes = ring_bytes + activation_bytes + partial_bytes + inbox_bytes + barrier_bytes;
    static_assert(box_bytes % 1024 == 0, "the swizzle repeats every 1024 bytes");
    unsigned base; // a multiple of 1024

    __device__ __forceinline__ unsigned weights(int stage, int chunk) const {
        return base + stage * stage_bytes + chunk * box_bytes;
    }
    __device__ __forceinline__ unsigned activations() const { return base + ring_bytes; }
    __device__ __forceinline__ ElementAccumulator* partials() const { return accumulators(ring_bytes + activation_bytes); }
    // Where CTA `rank` of the cluster writes; the two buffers alternate.
    __device__ __forceinline__ ElementAccumulator* inbox(int buffer, int rank) const {
        return accumulators(ring_bytes + activation_bytes + partial_bytes) +
               (buffer * cfg::cluster_k + rank) * cfg::own_elements;
    }
    __device__ __forceinline__ unsigned full(int stage) const { return barrier(stage); }
    __device__ __forceinline__ unsigned empty(int stage) const { return barrier(cfg::stages + stage); }
    __device__ __forceinline__ unsigned activations_full(int stage) const { return barrier(2 * cfg::stages + stage); }
    __device__ __forceinline__ unsigned received(int buffer) const {
        return barrier(2 * cfg::stages + activation_stages + buffer);
    }

    // Called by one lane.
    __device__ __forceinline__ void init() const {
        for (int stage = 0; stage < cfg::stages; ++stage) {
            mbarrier_init(full(stage), 1);
            mbarrier_init(empty(stage), cfg::warps);
        }
        for (int stage = 0; stage < activation_stages; ++stage) mbarrier_init(activations_full(stage), cfg::threads);
        if constexpr (cfg::cluster_k > 1)
            for (int buffer = 0; buffer < 2; ++buffer) mbarrier_init(received(buffer), 1);
        mbarrier_init_fence();
    }
    // Byte offset of 16 bytes, number `vector` of the 128-byte row `row`: TMA's 128-byte swizzle.
    static __device__ __forceinline__ unsigned swizzled(int row, int vector) {
        return row * cfg::chunk_bytes + ((vector ^ (row & 7)) << 4);
    }

private:
    __device__ __forceinline__ ElementAccumulator* accumulators(int offset) const {
        return reinterpret_cast<ElementAccumulator*>(smem + (base - smem_address(smem)) + offset);
    }
    __device__ __forceinline__ unsigned barrier(int index) const { return base + (bytes - barrier_bytes) + index * 8; }
};
