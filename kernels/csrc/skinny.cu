// GEMM where M or N is at most 16: the time is that of reading the large operand, the weights, once. They go
// from global memory straight to registers in 16-byte loads, several of them in flight; no lane waits for
// another before the sums are complete.
//
// Tiles: a block computes TILE_M x TILE_N of D, at most 16 along the thin axis; its warps split the tile along
// the wide axis and, slot by slot in turn, along k; split-K splits k among blocks. A warp holds SLOTS x STEPS
// steps of k in registers: while one slot is multiplied the loads of the others are on their way. The thin
// operand is read through the L1. blockIdx = (tile, split, batch).
// Shared memory: sums of all warps, WARPS_K x thin tile x (wide tile + 4), added up in warp order. Static.
// Minimum sm_80; mma of 8-bit floats sm_89. Any layout, alignment and size. Does not accumulate in f16.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=1 -DTILE_N=32 -DTILE_K=128 -DRASTER=0 -DRASTER_SNAKE=0 -DGROUP=1 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWEIGHTS_A=0 -DMATH=1 -DWARP_TILES=1 -DWARPS_WIDE=2
//   -DWARPS_K=4 -DSTEPS=4 -DSLOTS=2 -DMIN_BLOCKS=1 -DWEIGHT_CACHE=1 -DL2_FETCH=128 -DALIGN_WEIGHTS=16
//   -DALIGN_THIN=16 -DPREFETCH=0 -DRELEASE=0 skinny.cu
#include "ptx/dependent.cuh"
#include "skinny_config.cuh"
#include "tile/skinny_sums.cuh"

using Held = Chunk[cfg::steps][cfg::chunks];

__device__ __forceinline__ void multiply_slot(Sums<In, cfg::mma>& sums, const Held& held, ThinRows& thin) {
    // NOTE: thin rows read further ahead would take the registers of weights in flight.
    constexpr int most = cfg::mma ? 4 / cfg::thin_rows : 1, ahead = cfg::steps < most ? cfg::steps : most;
#pragma unroll
    for (int s = 0; s < cfg::steps; s += ahead) {
        Thin x[ahead][cfg::thin_rows];
#pragma unroll
        for (int i = 0; i < ahead; ++i) thin.next(x[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) sums.multiply(held[s + i], x[i]);
    }
    thin.next_slot();
}

// From the warp's first slot to the end of the block's share, `depth` further on.
__device__ __forceinline__ void run_slots(Sums<In, cfg::mma>& sums, Weights weights, ThinRows thin, int depth) {
    Held held[cfg::slots];
#pragma unroll
    for (int s = 0; s < cfg::slots; ++s) weights.next(held[s]);
    for (; depth > 0; depth -= cfg::slots * cfg::slot_distance) {
#pragma unroll
        for (int s = 0; s < cfg::slots; ++s) {
            multiply_slot(sums, held[s], thin);
            weights.next(held[s]);
        }
    }
}

// End of split `split` of k; splits end where slots do.
__device__ __forceinline__ int split_end(int k, int split) {
    if (cfg::split_k == 1) return split ? k : 0;
    const int all = (k + cfg::tile_k - 1) / cfg::tile_k;
    return min(k, int(static_cast<long long>(all) * split / cfg::split_k) * cfg::tile_k);
}

extern "C" __global__ void __launch_bounds__(cfg::threads, cfg::min_blocks) skinny(GEMM_PARAMETERS) {
    if constexpr (!cfg::release_late) release_next_kernel();
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const int thin_tiles = cfg::weights_are_a ? tiles_n : tiles_m, tile = blockIdx.x;
    const int wide_tile = thin_tiles == 1 ? tile : tile / thin_tiles;
    const int wide0 = wide_tile * cfg::tile_wide, thin0 = (tile - wide_tile * thin_tiles) * cfg::tile_thin;
    const long long batch = blockIdx.z;
    a += batch * stride_a, b += batch * stride_b;

    const int warp = threadIdx.x / 32, warp_k = warp / cfg::warps_wide;
    const int warp_wide = warp % cfg::warps_wide * cfg::warp_tiles * cfg::warp_tile;
    const int k0 = split_end(k, blockIdx.y) + warp_k * cfg::tile_k, k_end = split_end(k, blockIdx.y + 1);
    Sums<In, cfg::mma> sums;
    if constexpr (cfg::prefetch > 0)
        prefetch_weights(cfg::weights_are_a ? a : b, cfg::weights_are_a ? lda : ldb, wide0, cfg::weights_are_a ? m : n,
                         split_end(k, blockIdx.y), split_end(k, blockIdx.y + 1));
    await_previous_kernel();
    run_slots(sums,
              cfg::weights_are_a ? Weights(a, lda, wide0 + warp_wide, m, k0, k_end)
                                 : Weights(b, ldb, wide0 + warp_wide, n, k0, k_end),
              cfg::weights_are_a ? ThinRows(b, ldb, thin0, n, k0, k_end) : ThinRows(a, lda, thin0, m, k0, k_end), k_end - k0);
    if constexpr (cfg::release_late) release_next_kernel();
    __shared__ Real smem[cfg::warps_k * cfg::tile_thin * sums_stride];
    sums.put(smem + warp_k * cfg::tile_thin * sums_stride + warp_wide);
    __syncthreads();

    d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;
    const Epilogue epilogue{c, d, bias, ldc, ldd, m, n, alpha, beta};
    const int tiles = tiles_m * tiles_n;
    ThinFinish<cfg::warps_k> finish;
    finish.add_warps(smem);
    finish.store(epilogue, cfg::weights_are_a ? wide0 : thin0, cfg::weights_are_a ? thin0 : wide0, workspace,
                 int(batch) * tiles + tile, tiles * int(gridDim.z), blockIdx.y);
}
