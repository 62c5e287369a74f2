// Global to shared memory: the producer's ring of weights by TMA, and the activations that stay resident.
#pragma once
#include "common/ptx/cp_async.cuh"
#include "common/ptx/tma.cuh"
#include "gemv_tma/layout.cuh"

// Prefetches the first stages of the CTA's first work tile into the L2, one box a thread.
__device__ __forceinline__ void prefetch_weights(const Scheduler& scheduler, const TensorMap* map) {
    if (threadIdx.x >= cfg::prefetch * cfg::stage_chunks) return;
    const WorkTile work = scheduler.work_tile(scheduler.first);
    const int chunk = work.begin + threadIdx.x;
    if (chunk < work.end) tma_prefetch(map, chunk * cfg::chunk_k, work.weight_tile * cfg::weight_rows, work.batch);
}

// Keeps the ring full; called by one lane. NOTE: all boxes of a stage are requested together. When each warp requested its
// own boxes as it needed them, the same weights mostly took 1 to 7 % longer.
__device__ __forceinline__ void produce(const Scheduler& scheduler, const SharedMemory& shared, const TensorMap* map) {
    RingState state;
    for (int index = scheduler.first; index < scheduler.work_tiles; index += scheduler.step) {
        const WorkTile work = scheduler.work_tile(index);
        for (int chunk = work.begin; chunk < work.end; chunk += cfg::stage_chunks) {
            const int boxes = min(cfg::stage_chunks, work.end - chunk);
            const unsigned full = shared.full(state.stage);
            mbarrier_wait(shared.empty(state.stage), state.phase ^ 1);
            mbarrier_arrive_expect(full, boxes * SharedMemory::box_bytes);
#pragma unroll
            for (int at = 0; at < cfg::stage_chunks; ++at)
                if (at < boxes)
                    tma_load<CacheHint::evict_first>(shared.weights(state.stage, at), map, full, (chunk + at) * cfg::chunk_k,
                                                     work.weight_tile * cfg::weight_rows, work.batch);
            state.advance();
        }
    }
}

// The activations in global memory.
struct Activations {
    const In* data;
    long long stride, batch_stride;
    int rows, k;

    // Loads the work tile's slice, with zeros outside the matrix, in the order in which its stages are multiplied;
    // activations_full() of a stage completes when the stage has arrived. All threads that multiply call it.
    __device__ __forceinline__ void load_slice(const SharedMemory& shared, const WorkTile& work) const {
        constexpr int vectors = cfg::chunk_bytes / 16, vector_k = cfg::chunk_k / vectors; // 16 bytes each
        constexpr int stage_vectors = cfg::stage_chunks * cfg::activation_rows * vectors;
        const In* from = data + work.batch * batch_stride;
        const int all = (work.end - work.begin) * cfg::activation_rows * vectors;
        for (int stage = 0; stage < SharedMemory::activation_stages; ++stage) {
            const int end = min(all, (stage + 1) * stage_vectors);
            for (int i = stage * stage_vectors + threadIdx.x; i < end; i += cfg::threads) {
                const int vector = i % vectors, line = i / vectors;
                const int row = work.activation_row + line % cfg::activation_rows;
                const int column = (work.begin + line / cfg::activation_rows) * cfg::chunk_k + vector * vector_k;
                const bool inside = row < rows && column < k;
                const unsigned to = shared.activations() + SharedMemory::swizzled(line, vector);
                cp_async<16>(to, from + (inside ? row * stride + column : 0), inside);
            }
            cp_async_arrive(shared.activations_full(stage));
        }
    }
};
