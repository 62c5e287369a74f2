// GEMM where M or N is at most 16 and rows of both operands run along k: the large operand, the weights, is streamed
// once by TMA through a ring in shared memory, the thin operand waits there.
//
// Tiles: a block computes 16 * WARP_TILES rows of the weights by at most 16 thin ones. A panel is 128 bytes of k; a
// stage is WARPS * PANELS neighbouring panels, one TMA box each, so that 0.5 to 8 KiB of every row are asked for together.
// One warp asks for stages; of the others, warp w multiplies panels w, w + WARPS, .. of each, and the sums of all meet at
// the end of a tile. The CLUSTER_K blocks of a cluster share the k of their tiles: each holds its part of the thin operand
// only, and finishes a share of the tile. Blocks are persistent: the units of a cluster are number blockIdx.x / CLUSTER_K,
// + gridDim.x / CLUSTER_K, .. of (wide tile, combo), the combo fastest: (batch, thin tile, split of k). Loads run ahead
// into the next units.
// The parts: stream/work.cuh (which units), producer.cuh (weights), thin.cuh, sums.cuh (products), gather.cuh (clusters),
// memory.cuh.
// Shared memory, from a multiple of 1024 bytes on:
//   STAGES x WARPS * PANELS x (16 * WARP_TILES rows x 128)   weights, in TMA's 128-byte swizzle
//   THIN_PANELS x thin tile x 128                            the combo's k of the thin operand, in the same swizzle
//   WARPS x thin tile x (wide tile + 4) x 4                  sums
//   2 x thin tile x wide tile x 4                            inbox, if CLUSTER_K > 1
//   barriers of 8: 2 x STAGES, one a stage of the thin slice, 2 if CLUSTER_K > 1
// sm_90a only. Rows of A and B are multiples of 16 bytes; k is at most that of SPLIT_K * CLUSTER_K * THIN_PANELS panels.
// Does not support: other layouts than nt, other types than f16, bf16, e4m3, e5m2, s8 and u8, accumulating in f16,
// splits of k beside clusters.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=16 -DTILE_N=16 -DTILE_K=512 -DRASTER=0 -DRASTER_SNAKE=0 -DGROUP=1 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWEIGHTS_A=0 -DWARP_TILES=1 -DWARPS=8 -DPANELS=1 -DSTAGES=4
//   -DTHIN_PANELS=32 -DCLUSTER_K=2 -DWEIGHT_HINT=0 -DPREFETCH=2 stream.cu
#include "ptx/dependent.cuh"
#include "ptx/elect.cuh"
#include "ptx/warpgroup.cuh"
#include "stream/gather.cuh"
#include "stream/producer.cuh"
#include "stream/sums.cuh"
#include "stream/thin.cuh"

// The warps that multiply.
struct Team {
    static __device__ __forceinline__ void sync() { named_barrier_sync(1, cfg::threads); }
};

extern "C" __global__ void __launch_bounds__(cfg::threads + 32, 1)
    stream(const __grid_constant__ TensorMap map_weights, int batch, GEMM_PARAMETERS) {
    release_next_kernel();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const Work work(cfg::weights_are_a ? m : n, cfg::weights_are_a ? n : m, k, batch, cfg::cluster_k == 1 ? 0 : cluster_rank());
    const SharedMemory shared{(smem_address(smem) + 1023u) & ~1023u};
    if (warp == 0 && elect_lane()) {
        tma_prefetch_map(&map_weights);
        shared.init();
    }
    if constexpr (cfg::cluster_k == 1)
        __syncthreads();
    else
        cluster_sync_barriers(); // blocks must have begun before others write to them
    if constexpr (cfg::prefetch > 0) prefetch_weights(work, &map_weights);
    await_previous_kernel();

    if (warp == cfg::warps) {
        if (elect_lane()) produce(work, shared, &map_weights);
        return;
    }
    const ThinOperand thin = cfg::weights_are_a ? ThinOperand{b, ldb, stride_b, n, k} : ThinOperand{a, lda, stride_a, m, k};
    Gather gather(shared, work.rank);
    Place slot;
    unsigned thin_phase = 1;
    for (int index = work.first, combo = -1; index < work.units; index += work.step) {
        const Unit unit = work.unit(index);
        const bool fresh = unit.combo != combo;
        if (fresh) {
            thin.load_slice(shared, unit);
            combo = unit.combo, thin_phase ^= 1;
        }
        PanelSums sums;
        int stage = 0;
        for (int panel = unit.begin; panel < unit.end; panel += cfg::stage_panels, ++stage) {
            if (fresh) mbarrier_wait(shared.thin_full(stage), thin_phase);
            mbarrier_wait(shared.full(slot.stage), slot.phase);
#pragma unroll
            for (int at = warp; at < cfg::stage_panels; at += cfg::warps)
                if (panel + at < unit.end)
                    sums.multiply(shared.panel(slot.stage, at), shared.thin(), panel - unit.begin + at);
            __syncwarp();
            if (elect_lane()) mbarrier_arrive(shared.empty(slot.stage));
            slot.advance();
        }
        // NOTE: every phase is waited for, be the unit shorter than others, as the next one counts from there.
        for (; fresh && stage < SharedMemory::thin_stages; ++stage) mbarrier_wait(shared.thin_full(stage), thin_phase);
        sums.put(shared.sums() + warp * SharedMemory::warp_sums);
        Team::sync();
        ThinFinish<cfg::warps, Team> finish;
        finish.add_warps(shared.sums());
        Team::sync(); // NOTE: a warp that is ahead would overwrite sums with those of its next unit
        if constexpr (cfg::cluster_k > 1) gather.run(finish);

        const int wide0 = unit.wide * cfg::tile_wide;
        const Epilogue epilogue{cfg::has_c ? c + unit.batch * stride_c : c, d + unit.batch * stride_d, bias, ldc, ldd, m, n,
                                alpha, beta};
        finish.store(epilogue, cfg::weights_are_a ? wide0 : unit.row0, cfg::weights_are_a ? unit.row0 : wide0, workspace,
                     unit.tile, work.wide_tiles * work.thin_tiles * batch, unit.split);
    }
}
