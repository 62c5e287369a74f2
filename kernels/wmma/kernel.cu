// GEMM with wmma: 16 x 16 x 16 products of opaque fragments, as nvcuda::wmma offers them. Global to shared
// memory synchronously (one stage) or by cp.async into a ring of stages. sm_80 and later; f16 and bf16;
// all layouts.
//
// Tiles: a CTA computes TILE_M x TILE_N of D in steps of TILE_K; its warps split the tile WARPS_M x WARPS_N; a warp computes
// wmma tiles of 16 x 16. blockIdx = (tile in raster order, split of k, batch). In order of execution: kernel.cu (loads and
// main loop), accumulators.cuh (products, epilogue).
// Shared memory: the larger of STAGES x (A tile | B tile), each with the rows it has in memory, blocked or padded
// (common/smem_tile.cuh), and of the TILE_M x TILE_N accumulators on their way to D (wmma/accumulators.cuh).
// 128 x 128 x 32, blocked, f32: 65,536 bytes with one stage and with four.
// Does not support: other element types, swizzled layouts (a fragment's rows are evenly spaced).
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=128 -DTILE_K=32 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1 -DALIGN_D=16
//   -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWARPS_M=2 -DWARPS_N=2 -DSTAGES=4 -DSMEM_LAYOUT=0 -DSNAKE=0
//   -DACCUMULATE=0 -DCOPY_A=16 -DCOPY_B=16 wmma/kernel.cu
#include "common/epilogue.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/raster.cuh"
#include "common/smem_tile.cuh"
#include "common/split_k.cuh"
#include "wmma/accumulators.cuh"
#include "wmma/config.cuh"

// Bytes that a thread copies at a time: COPY if the CTA's threads cover whole rows with such accesses, else 16.
__device__ constexpr int thread_bytes(int columns, int copy) {
    return cfg::threads % (columns * int(sizeof(In)) / copy) == 0 ? copy : 16;
}
template <int EXTENT, bool K_MAJOR, int COPY>
using Loader = TileLoader<In, EXTENT, K_MAJOR, cfg::tile_k, cfg::threads, COPY, (cfg::stages > 1), cfg::smem_layout,
                          thread_bytes(K_MAJOR ? cfg::tile_k : EXTENT, COPY)>;
using LoaderA = Loader<cfg::tile_m, !cfg::a_transposed, cfg::copy_a>;
using LoaderB = Loader<cfg::tile_n, cfg::b_transposed, cfg::copy_b>;
using TileA = LoaderA::Tile;
using TileB = LoaderB::Tile;
constexpr int stage_bytes = TileA::bytes + TileB::bytes;

// Elements between the rows of a fragment.
template <class Tile> constexpr int fragment_stride = cfg::blocked ? 16 : Tile::stride / int(sizeof(In));

extern __shared__ __align__(128) char smem[];

struct MainLoop {
    LoaderA loader_a;
    LoaderB loader_b;
    int warp_row, warp_col; // of the warp tile in the CTA's tile

    // Loads the k tiles in order.
    __device__ __forceinline__ void load_tile(int index, int stage) {
        loader_a.load(smem, stage * stage_bytes, index == 0);
        loader_b.load(smem, stage * stage_bytes + TileA::bytes, index == 0);
        loader_a.advance();
        loader_b.advance();
    }

    __device__ __forceinline__ void mma_tile(WarpAccumulator& accumulator, int stage) const {
        const char* tile_a = smem + stage * stage_bytes;
        const char* tile_b = tile_a + TileA::bytes;
#pragma unroll
        for (int step = 0; step < cfg::k_steps; ++step) {
            WmmaOperand<In> a[cfg::wmma_tiles_m], b[cfg::wmma_tiles_n];
#pragma unroll
            for (int i = 0; i < cfg::wmma_tiles_m; ++i) {
                const int row = warp_row + i * 16;
                if constexpr (cfg::a_transposed)
                    wmma_load_a_col<fragment_stride<TileA>>(a[i], smem_address(tile_a + TileA::chunk(step * 16, row / 8)));
                else
                    wmma_load_a_row<fragment_stride<TileA>>(a[i], smem_address(tile_a + TileA::chunk(row, step * 2)));
            }
#pragma unroll
            for (int j = 0; j < cfg::wmma_tiles_n; ++j) {
                const int col = warp_col + j * 16;
                if constexpr (cfg::b_transposed)
                    wmma_load_b_col<fragment_stride<TileB>>(b[j], smem_address(tile_b + TileB::chunk(col, step * 2)));
                else
                    wmma_load_b_row<fragment_stride<TileB>>(b[j], smem_address(tile_b + TileB::chunk(step * 16, col / 8)));
            }
            accumulator.multiply(a, b);
        }
    }
};

// Calls load(tile, stage), which writes k tile `tile` into a stage, and multiply(stage) for every k tile in order. With one
// stage: load, wait, multiply. With more, DEPTH - 1 tiles are in flight while one is multiplied; a group is committed even
// if no tile is left, so that the number of groups in flight does not depend on k. On return the CTA has finished with all
// stages.
template <int DEPTH, class Load, class Multiply>
__device__ __forceinline__ void run_stages(int k_tiles, const Load& load, const Multiply& multiply) {
    if constexpr (DEPTH == 1) {
        for (int tile = 0; tile < k_tiles; ++tile) {
            __syncthreads();
            load(tile, 0);
            __syncthreads();
            multiply(0);
        }
    } else {
        const auto prefetch = [&](int tile, int stage) {
            if (tile < k_tiles) load(tile, stage);
            cp_async_commit();
        };
        for (int i = 0; i < DEPTH - 1; ++i) prefetch(i, i);
        int read = 0, write = DEPTH - 1;
        for (int tile = 0; tile < k_tiles; ++tile) {
            cp_async_wait<DEPTH - 2>();
            __syncthreads();
            prefetch(tile + DEPTH - 1, write);
            multiply(read);
            write = read;
            read = read + 1 == DEPTH ? 0 : read + 1;
        }
        cp_async_wait<0>();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(cfg::threads, 1) wmma(GEMM_PARAMETERS) {
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const TileCoord tile = raster_tile(blockIdx.x, tiles_m, tiles_n);
    const long long batch = blockIdx.z;
    a += batch * stride_a, b += batch * stride_b, d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;

    const KTiles k_tiles = split_range<cfg::tile_k, cfg::split_k>(k, blockIdx.y);
    const int row0 = tile.m * cfg::tile_m, col0 = tile.n * cfg::tile_n, warp = threadIdx.x / 32;
    MainLoop loop{LoaderA(a, lda, m, row0, k_tiles), LoaderB(b, ldb, n, col0, k_tiles),
                        warp / cfg::warps_n * cfg::warp_m, warp % cfg::warps_n * cfg::warp_n};
    WarpAccumulator accumulator;
    accumulator.clear();
    run_stages<cfg::stages>(
        k_tiles.count, [&](int index, int stage) { loop.load_tile(index, stage); },
        [&](int stage) { loop.mma_tile(accumulator, stage); });

    StagedTile::store(smem, accumulator, loop.warp_row, loop.warp_col);
    __syncthreads();
    const Epilogue epilogue{c, d, bias, ldc, ldd, m, n, alpha, beta};
    if constexpr (cfg::split_k > 1) {
        const int tiles = tiles_m * tiles_n;
        StoreTile::Reducer reducer(workspace, int(batch) * tiles + blockIdx.x, tiles * gridDim.z);
        StoreTile::store_partial(smem, reducer, blockIdx.y);
        if (reducer.arrive()) StoreTile::store(reducer, epilogue, row0, col0);
    } else {
        StoreTile::store(smem, epilogue, row0, col0);
    }
}
