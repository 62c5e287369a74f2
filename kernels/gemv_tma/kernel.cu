// GEMM where M or N is at most 16 and rows of both operands run along k. TMA streams the large operand, the weights,
// once through a ring in shared memory; the small one, the activations, stays resident.
//
// Tiles: a CTA computes 16 * WARP_TILES weight rows by at most 16 activation rows. A k chunk is 128 bytes of k. A stage is
// WARPS * K_CHUNKS neighbouring k chunks, one TMA box each, so that 0.5 to 8 KiB of every row are requested together. One
// warp, the producer, loads stages; consumer warp w multiplies chunks w, w + WARPS, .. of each, and the accumulators of all
// are added up at the end of a tile. The CLUSTER_K CTAs of a cluster partition the k of their tiles: each holds only its
// partition of the activations, and finishes its part of the tile. CTAs are persistent: they iterate over the work tiles
// of gemv_tma/layout.cuh, and the producer runs ahead into the next work tiles.
// In order of execution: layout.cuh (work tiles, shared memory), load.cuh (producer, activations), compute.cuh (products,
// reduction over a cluster), gemv/epilogue.cuh (reduction over warps, D).
// Shared memory, from a multiple of 1024 bytes on:
//   STAGES x WARPS * K_CHUNKS x (16 * WARP_TILES rows x 128)   weights, in TMA's 128-byte swizzle
//   ACTIVATION_K_CHUNKS x activation rows x 128                the slice of the activations, in the same swizzle
//   WARPS x activation rows x (weight rows + 4) x 4            partials
//   2 x activation rows x weight rows x 4                      inboxes, if CLUSTER_K > 1
//   barriers of 8: 2 x STAGES, one a stage of the activations, 2 if CLUSTER_K > 1
// sm_90a only. Rows of A and B are multiples of 16 bytes; k is at most CLUSTER_K * ACTIVATION_K_CHUNKS k chunks.
// Does not support: layouts other than nt; types other than f16, bf16, e4m3, e5m2, s8 and u8; accumulating in f16;
// split-K.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=16 -DTILE_N=16 -DTILE_K=512 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWEIGHTS_A=0 -DWARP_TILES=1 -DWARPS=8 -DK_CHUNKS=1 -DSTAGES=4
//   -DACTIVATION_K_CHUNKS=32 -DCLUSTER_K=2 -DPREFETCH=2 gemv_tma/kernel.cu
#include "common/ptx/control.cuh"
#include "common/ptx/mbarrier.cuh"
#include "gemv_tma/compute.cuh"
#include "gemv_tma/load.cuh"

struct ConsumerWarps {
    static __device__ __forceinline__ void sync() { named_barrier_sync(1, cfg::threads); }
};

extern "C" __global__ void __launch_bounds__(cfg::threads + 32, 1)
    gemv_tma(const __grid_constant__ TensorMap map_weights, int batch, GEMM_PARAMETERS) {
    release_next_kernel();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const SharedMemory shared{(smem_address(smem) + 1023u) & ~1023u};
    const bool produces = warp == cfg::warps;
    if (produces) {
        if (elect_lane()) {
            tma_prefetch_map(&map_weights);
            shared.init();
        }
        __syncwarp();
    }
    // Without a cluster the producer loads at once, and only the consumers wait for the barriers. In a cluster a CTA must have
    // started before others write to its shared memory.
    if constexpr (cfg::cluster_k > 1)
        cluster_arrive_barriers();
    else if (produces)
        named_barrier_arrive(2, cfg::threads + 32);
    const Scheduler scheduler(cfg::weights_are_a ? m : n, cfg::weights_are_a ? n : m, k, batch,
                              cfg::cluster_k == 1 ? 0 : cluster_rank());
    if (cfg::prefetch > 0 && !produces) prefetch_weights(scheduler, &map_weights);
    __syncwarp();
    if constexpr (cfg::cluster_k > 1)
        cluster_wait_barriers();
    else if (!produces)
        named_barrier_sync(2, cfg::threads + 32);
    await_previous_kernel();

    if (produces) {
        if (elect_lane()) produce(scheduler, shared, &map_weights);
        return;
    }
    const Activations activations =
        cfg::weights_are_a ? Activations{b, ldb, stride_b, n, k} : Activations{a, lda, stride_a, m, k};
    ClusterReduction cluster(shared, scheduler.rank);
    RingState state;
    unsigned activation_phase = 1;
    for (int index = scheduler.first, slice = -1; index < scheduler.work_tiles; index += scheduler.step) {
        const WorkTile work = scheduler.work_tile(index);
        const bool new_slice = work.slice != slice;
        if (new_slice) {
            activations.load_slice(shared, work);
            slice = work.slice, activation_phase ^= 1;
        }
        Accumulator accumulator;
        int stage = 0; // of the activations
        for (int chunk = work.begin; chunk < work.end; chunk += cfg::stage_chunks, ++stage) {
            if (new_slice) mbarrier_wait(shared.activations_full(stage), activation_phase);
            mbarrier_wait(shared.full(state.stage), state.phase);
#pragma unroll
            for (int at = warp; at < cfg::stage_chunks; at += cfg::warps)
                if (chunk + at < work.end)
                    accumulator.multiply(shared.weights(state.stage, at), shared.activations(), chunk - work.begin + at);
            __syncwarp();
            if (elect_lane()) mbarrier_arrive(shared.empty(state.stage));
            state.advance();
        }
        // NOTE: a short work tile waits for its remaining phases too: the next slice counts phases from there.
        for (; new_slice && stage < SharedMemory::activation_stages; ++stage)
            mbarrier_wait(shared.activations_full(stage), activation_phase);
        accumulator.store(shared.partials() + warp * SharedMemory::warp_elements);
        ConsumerWarps::sync();
        GemvEpilogue<cfg::warps> epilogue;
        epilogue.add_warps(shared.partials());
        ConsumerWarps::sync(); // NOTE: otherwise a faster warp overwrites partials with those of its next work tile
        if constexpr (cfg::cluster_k > 1) cluster.run(epilogue);

        const int weight_row = work.weight_tile * cfg::weight_rows;
        const Epilogue elementwise{cfg::has_c ? c + work.batch * stride_c : c, d + work.batch * stride_d, bias, ldc, ldd, m, n,
                                   alpha, beta};
        epilogue.store(elementwise, cfg::weights_are_a ? weight_row : work.activation_row,
                       cfg::weights_are_a ? work.activation_row : weight_row);
    }
}
