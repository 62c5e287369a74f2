// GEMM where M or N is at most 16 and rows of both operands run along k: the large operand, the weights, is streamed
// once by TMA through a ring in shared memory, the thin operand waits there.
//
// Tiles: a block computes 16 * WARP_TILES rows of the weights by at most 16 thin ones. A panel is 128 bytes of k; a
// stage is WARPS * PANELS neighbouring panels, one TMA box each, so that 0.5 to 8 KiB of every row are asked for together.
// Warp w loads and multiplies panels w, w + WARPS, .. of every stage: its ring is its own, nobody else fills or empties
// it, and the sums of all warps meet at the end of a tile. Blocks are persistent: unit u = blockIdx.x, + gridDim.x, ..
// is (wide tile, combo), the combo fastest: (batch, thin tile, split of k). Loads run ahead into the next units.
// The parts: stream/work.cuh (which units), loader.cuh (weights), thin.cuh, sums.cuh (products), memory.cuh.
// Shared memory, from a multiple of 1024 bytes on:
//   STAGES x WARPS * PANELS x (16 * WARP_TILES rows x 128)   weights, in TMA's 128-byte swizzle
//   THIN_PANELS x thin tile x 128                            the combo's k of the thin operand, in the same swizzle
//   WARPS x thin tile x (wide tile + 4) x 4                  sums
//   STAGES x WARPS x 8                                       barriers
// sm_90a only. Rows of A and B are multiples of 16 bytes; k is at most that of SPLIT_K * THIN_PANELS panels.
// Does not support: other layouts than nt, other types than f16, bf16, e4m3, e5m2, s8 and u8, accumulating in f16.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=16 -DTILE_N=16 -DTILE_K=512 -DRASTER=0 -DRASTER_SNAKE=0 -DGROUP=1 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWEIGHTS_A=0 -DWARP_TILES=1 -DWARPS=8 -DPANELS=1 -DSTAGES=4
//   -DTHIN_PANELS=64 -DLOCKSTEP=1 -DWEIGHT_HINT=0 -DPREFETCH=2 stream.cu
#include "ptx/dependent.cuh"
#include "stream/loader.cuh"
#include "stream/sums.cuh"
#include "stream/thin.cuh"
#include "tile/ring.cuh"

using Place = Slot<cfg::stages>;

extern "C" __global__ void __launch_bounds__(cfg::threads, 1)
    stream(const __grid_constant__ TensorMap map_weights, int batch, GEMM_PARAMETERS) {
    release_next_kernel();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const Work work(cfg::weights_are_a ? m : n, cfg::weights_are_a ? n : m, k, batch);
    const SharedMemory shared{(smem_address(smem) + 1023u) & ~1023u};
    if (elect_lane()) {
        tma_prefetch_map(&map_weights);
        for (int stage = 0; stage < cfg::stages; ++stage) mbarrier_init(shared.full(stage, warp), 1);
        mbarrier_init_fence();
    }
    __syncwarp();
    if constexpr (cfg::prefetch > 0) prefetch_weights(work, &map_weights);
    await_previous_kernel();

    Loader loader(work, shared, &map_weights, warp);
    for (int stage = 0; stage < cfg::stages; ++stage) loader.next(stage);
    const ThinOperand thin = cfg::weights_are_a ? ThinOperand{b, ldb, stride_b, n, k} : ThinOperand{a, lda, stride_a, m, k};
    Place slot;
    for (int index = blockIdx.x, combo = -1; index < work.units; index += gridDim.x) {
        const Unit unit = work.unit(index);
        if (unit.combo != combo) {
            thin.load_slice(shared.thin(), unit);
            combo = unit.combo;
            __syncthreads();
        }
        PanelSums sums;
        for (int panel = unit.begin; panel < unit.end; panel += cfg::stage_panels) {
            mbarrier_wait(shared.full(slot.stage, warp), slot.phase);
#pragma unroll
            for (int at = warp; at < cfg::stage_panels; at += cfg::warps)
                if (panel + at < unit.end)
                    sums.multiply(shared.panel(slot.stage, at), shared.thin(), panel - unit.begin + at);
            if constexpr (cfg::lockstep)
                __syncthreads();
            else
                __syncwarp();
            loader.next(slot.stage);
            slot.advance();
        }
        sums.put(shared.sums() + warp * SharedMemory::warp_sums);
        __syncthreads();
        ThinFinish<cfg::warps> finish;
        finish.add_warps(shared.sums());
        __syncthreads(); // NOTE: a warp that is ahead would overwrite sums with those of its next unit

        const int wide0 = unit.wide * cfg::tile_wide;
        const Epilogue epilogue{cfg::has_c ? c + unit.batch * stride_c : c, d + unit.batch * stride_d, bias, ldc, ldd, m, n,
                                alpha, beta};
        finish.store(epilogue, cfg::weights_are_a ? wide0 : unit.row0, cfg::weights_are_a ? unit.row0 : wide0, workspace,
                     unit.tile, work.wide_tiles * work.thin_tiles * batch, unit.split);
    }
}
