// GEMM where M or N is at most 16. Its time is the time to read the large operand, the weights, once. Weights go from global
// memory straight to registers in 16-byte loads, several of them in flight; no lane waits for another before the
// accumulators are complete.
//
// Tiles: a CTA computes TILE_M x TILE_N of D, at most 16 activation rows and 16 weight rows, or 128 bytes of them if they
// are not K-major. Its warps take stages of k in turn; split-K splits k among CTAs. A warp holds STAGES x STEPS steps of k in registers: while it
// multiplies one stage, the loads of the others are in flight. The activations, the small operand, are read through the L1.
// blockIdx = (tile, split, batch). In order of execution: load.cuh, compute.cuh, gemv/epilogue.cuh.
// Shared memory: the partials of all warps, WARPS_K x activation rows x (weight rows + 4). Static.
// Minimum sm_80; mma of 8-bit floats sm_89. Any layout, alignment and size. Does not accumulate in f16.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=1 -DTILE_N=16 -DTILE_K=128 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1
//   -DALIGN_D=16 -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWEIGHTS_A=0 -DMATH=1
//   -DWARPS_K=4 -DSTEPS=4 -DSTAGES=2 -DMIN_CTAS_PER_SM=1 -DALIGN_WEIGHTS=16
//   -DALIGN_ACTIVATIONS=16 -DPREFETCH=0 -DRELEASE=0 gemv/kernel.cu
#include "common/ptx/control.cuh"
#include "common/split_k.cuh"
#include "gemv/compute.cuh"

using WeightStage = Vector[cfg::steps][cfg::vectors];
using WarpAccumulator = Accumulator<In, cfg::mma>;

__device__ __forceinline__ void multiply_stage(WarpAccumulator& accumulator, const WeightStage& held,
                                               Activations& activations) {
    // NOTE: loading activations further ahead would take registers from the weights in flight.
    constexpr int most = cfg::mma ? 4 / cfg::lane_rows : 1, ahead = cfg::steps < most ? cfg::steps : most;
#pragma unroll
    for (int s = 0; s < cfg::steps; s += ahead) {
        ActivationVector x[ahead][cfg::lane_rows];
#pragma unroll
        for (int i = 0; i < ahead; ++i) activations.next(x[i]);
#pragma unroll
        for (int i = 0; i < ahead; ++i) accumulator.multiply(held[s + i], x[i]);
    }
    activations.next_stage();
}

// Multiplies from the warp's first stage to the end of the CTA's split, `depth` of k further on.
__device__ __forceinline__ void run_stages(WarpAccumulator& accumulator, Weights weights, Activations activations,
                                           int depth) {
    WeightStage held[cfg::stages];
#pragma unroll
    for (int s = 0; s < cfg::stages; ++s) weights.next(held[s]);
    for (; depth > 0; depth -= cfg::stages * cfg::stage_distance) {
#pragma unroll
        for (int s = 0; s < cfg::stages; ++s) {
            multiply_stage(accumulator, held[s], activations);
            weights.next(held[s]);
        }
    }
}

// The k where split `split` starts and the one before ends: a multiple of a stage, or k.
__device__ __forceinline__ int split_start(int k, int split) {
    if (cfg::split_k == 1) return split ? k : 0;
    const int all = (k + cfg::tile_k - 1) / cfg::tile_k;
    return min(k, int(static_cast<long long>(all) * split / cfg::split_k) * cfg::tile_k);
}

extern "C" __global__ void __launch_bounds__(cfg::threads, cfg::min_ctas_per_sm) gemv(GEMM_PARAMETERS) {
    if constexpr (!cfg::release_late) release_next_kernel();
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const int activation_tiles = cfg::weights_are_a ? tiles_n : tiles_m, tile = blockIdx.x;
    const int weight_tile = activation_tiles == 1 ? tile : tile / activation_tiles;
    const int weight_row0 = weight_tile * cfg::weight_rows;
    const int activation_row0 = (tile - weight_tile * activation_tiles) * cfg::activation_rows;
    const long long batch = blockIdx.z;
    a += batch * stride_a, b += batch * stride_b;

    const int warp = threadIdx.x / 32;
    const int k0 = split_start(k, blockIdx.y) + warp * cfg::tile_k, k_end = split_start(k, blockIdx.y + 1);
    WarpAccumulator accumulator;
    if constexpr (cfg::prefetch > 0)
        prefetch_weights(cfg::weights_are_a ? a : b, cfg::weights_are_a ? lda : ldb, weight_row0, cfg::weights_are_a ? m : n,
                         split_start(k, blockIdx.y), split_start(k, blockIdx.y + 1));
    await_previous_kernel();
    run_stages(accumulator,
               cfg::weights_are_a ? Weights(a, lda, weight_row0, m, k0, k_end)
                                  : Weights(b, ldb, weight_row0, n, k0, k_end),
               cfg::weights_are_a ? Activations(b, ldb, activation_row0, n, k0, k_end)
                                  : Activations(a, lda, activation_row0, m, k0, k_end),
               k_end - k0);
    if constexpr (cfg::release_late) release_next_kernel();
    __shared__ ElementAccumulator smem[cfg::warps_k * cfg::activation_rows * partial_stride];
    accumulator.store(smem + warp * cfg::activation_rows * partial_stride);
    __syncthreads();

    d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;
    const Epilogue elementwise{c, d, bias, ldc, ldd, m, n, alpha, beta};
    const int tiles = tiles_m * tiles_n;
    GemvEpilogue<cfg::warps_k> epilogue;
    epilogue.add_warps(smem);
    if constexpr (cfg::split_k > 1) {
        SplitK<epilogue.values, cfg::threads> reducer(workspace, int(batch) * tiles + tile, tiles * int(gridDim.z));
        if (!reducer.reduce(epilogue.value, threadIdx.x, true, blockIdx.y)) return;
    }
    epilogue.store(elementwise, cfg::weights_are_a ? weight_row0 : activation_row0,
                   cfg::weights_are_a ? activation_row0 : weight_row0);
}
