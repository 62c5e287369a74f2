// GEMM by wgmma in one warp role: TMA fills a ring of shared-memory stages, every warpgroup multiplies, and one lane of the first
// warp refills the stage that all warps have released. sm_90a only; f16 and bf16; all layouts; rows of A and B must be multiples
// of 16 bytes, m, n and k are otherwise free.
//
// Tiles: a CTA computes TILE_M x TILE_N of D in steps of TILE_K; its WARPGROUPS split the rows, and each computes wgmma atoms of
// 64 x TILE_N in steps of 16 along k. blockIdx = (tile in raster order, 0, batch).
// Shared memory: STAGES x (A tile | B tile) in the layout of common/wgmma.cuh, then the barriers of common/pipeline.cuh. The
// staged epilogue reuses the stages.
// Does not support: split-K, other element types, unaligned rows of A or B.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_90a -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=256 -DTILE_K=64 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=8 -DSPLIT_K=1 -DALIGN_D=16
//   -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWARPGROUPS=2 -DSTAGES=4 -DACCUMULATE=0
//   -DEPILOGUE=1 -DBOX_LINES=0 -DARRIVALS=0 wgmma/kernel.cu
#include "common/ptx/load_store.cuh"
#include "common/ptx/control.cuh"
#include "common/epilogue.cuh"
#include "common/raster.cuh"
#include "common/pipeline.cuh"
#include "wgmma/epilogue.cuh"
#include "common/wgmma.cuh"
#include "wgmma/config.cuh"

using TileA = WgmmaTile<In, cfg::tile_m, cfg::tile_k, !cfg::a_transposed>;
using TileB = WgmmaTile<In, cfg::tile_n, cfg::tile_k, cfg::b_transposed>;
using Stages = Ring<cfg::stages, TileA::bytes, TileB::bytes>;
using RingState = PipelineState<cfg::stages>;
static_assert(!cfg::epilogue_smem || TileD::bytes <= Stages::tile_bytes, "the staged epilogue fits the stages");

// NOTE: aligning it costs nothing as long as there is no static shared memory before it.
extern __shared__ __align__(1024) char smem[];

struct MainLoop {
    Stages ring;
    const TensorMap *map_a, *map_b;
    int row0, col0, batch, k_tiles;
    int warp;

    // Called by one lane.
    __device__ __forceinline__ void load_tile(int index, int stage) const {
        mbarrier_arrive_expect(ring.full(stage), Stages::stage_bytes);
        TileA::load<cfg::box_lines>(ring.tile_a(stage), map_a, ring.full(stage), row0, index * cfg::tile_k, batch);
        TileB::load<cfg::box_lines>(ring.tile_b(stage), map_b, ring.full(stage), col0, index * cfg::tile_k, batch);
    }

    __device__ __forceinline__ void multiply_tile(Accumulator& acc, int stage) const {
        const unsigned long long a =
            TileA::descriptor(ring.tile_a(stage)) + TileA::extent_offset(64) * (warp / 4 * cfg::atoms);
        const unsigned long long b = TileB::descriptor(ring.tile_b(stage));
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < cfg::k_steps; ++step)
#pragma unroll
            for (int atom = 0; atom < cfg::atoms; ++atom)
                acc.multiply(atom, a + (TileA::step_offset(step) + TileA::extent_offset(atom * 64)), b + TileB::step_offset(step));
        wgmma_commit();
    }

    // Releases k tile `index` in `state` for this warp or thread; the first warp loads the next k tile of the stage once all warps have
    // released it.
    __device__ __forceinline__ void release_tile(int index, RingState state) const {
        if (cfg::all_arrive || threadIdx.x % 32 == 0) mbarrier_arrive(ring.empty(state.stage));
        if (warp == 0 && index + cfg::stages < k_tiles && elect_lane()) {
            mbarrier_wait(ring.empty(state.stage), state.phase);
            load_tile(index + cfg::stages, state.stage);
        }
        __syncwarp();
    }

    __device__ __forceinline__ void issue_tile(Accumulator& acc, RingState& state) const {
        mbarrier_wait(ring.full(state.stage), state.phase);
        multiply_tile(acc, state.stage);
        state.advance();
    }

    // The wgmma of one k tile run while the next k tile is awaited.
    // NOTE: a stage is released only after wgmma_wait has confirmed that its wgmma are complete; that they were issued is not
    // enough.
    __device__ __forceinline__ void run(Accumulator& acc) const {
        RingState filled, done;
        issue_tile(acc, filled);
        for (int index = 1; index < k_tiles; ++index) {
            issue_tile(acc, filled);
            wgmma_wait<1>();
            release_tile(index - 1, done);
            done.advance();
        }
        acc.finish();
    }
};

extern "C" __global__ void __launch_bounds__(cfg::threads, 1)
    wgmma_gemm(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, GEMM_PARAMETERS) {
    release_next_kernel();
    const int warp = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0);
    const Stages ring{smem_address(smem)};
    if (warp == 0 && elect_lane()) {
        tma_prefetch_map(&map_a);
        tma_prefetch_map(&map_b);
        ring.init(cfg::all_arrive ? cfg::threads : cfg::warps);
    }
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const TileCoord tile = raster_tile(blockIdx.x, tiles_m, tiles_n);
    const TileCoord origin{tile.m * cfg::tile_m, tile.n * cfg::tile_n};
    const int batch = blockIdx.z;
    d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;

    const MainLoop loop{ring, &map_a, &map_b, origin.m, origin.n, batch, (k + cfg::tile_k - 1) / cfg::tile_k, warp};
    await_previous_kernel();
    if (warp == 0 && elect_lane()) {
        for (int i = 0; i < min(cfg::stages, loop.k_tiles); ++i) loop.load_tile(i, i);
    }
    Accumulator acc;
    acc.clear();
    __syncthreads();
    loop.run(acc);

    const Epilogue epilogue{c, d, bias, ldc, ldd, m, n, alpha, beta};
    if constexpr (cfg::epilogue_smem) {
        __syncthreads();
        store_staged(acc, epilogue, smem, origin, warp);
    } else {
        store_direct(acc, epilogue, origin, warp);
    }
}
