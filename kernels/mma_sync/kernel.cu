// GEMM with mma.sync: cp.async into a ring of shared-memory stages, fragments by ldmatrix or direct loads, tensor-core
// instructions of one warp. sm_80 and later; f16, bf16, tf32, types of 8, 4 and 1 bit and double; all layouts, of types of 8
// bits and fewer nt alone.
//
// Tiles: a CTA computes TILE_M x TILE_N of D in steps of TILE_K. Its WARPS_M x WARPS_N x WARPS_K warps split the tile along m
// and n and each k tile along k; the slices of k are added up in shared memory at the end. A warp computes mma tiles of 16 x 8.
// blockIdx = (tile in raster order, split of k, batch). In order of execution: kernel.cu (loads and main loop), compute.cuh
// (fragments, products), epilogue.cuh.
// Shared memory: STAGES x (A tile | B tile), each with the rows that the matrix has in memory, in the layout of
// common/smem_tile.cuh; the reduction over WARPS_K and the staged epilogue reuse it from the start.
// Does not support: float, e4m3 and e5m2 before sm_89.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=128 -DTILE_K=32 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1 -DALIGN_D=16
//   -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWARPS_M=2 -DWARPS_N=2 -DWARPS_K=1 -DSTAGES=4 -DMMA_K=16
//   -DFRAGMENT_LOAD=1 -DSMEM_LAYOUT=2 -DDOUBLE_BUFFER=1 -DSNAKE=1 -DACCUMULATE=0 -DEPILOGUE=1
//   -DCOPY_A=16 -DCOPY_B=16 -DMIN_CTAS_PER_SM=1 mma_sync/kernel.cu
#include "common/epilogue.cuh"
#include "common/ptx/control.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/raster.cuh"
#include "common/smem_tile.cuh"
#include "common/split_k.cuh"
#include "mma_sync/compute.cuh"
#include "mma_sync/config.cuh"
#include "mma_sync/epilogue.cuh"

template <int EXTENT, bool K_MAJOR, int COPY>
using Loader = TileLoader<In, K_MAJOR ? EXTENT : cfg::tile_k, K_MAJOR ? cfg::tile_k : EXTENT, cfg::threads, COPY,
                          (cfg::stages > 1), cfg::smem_layout>;
using LoaderA = Loader<cfg::tile_m, !cfg::a_transposed, cfg::copy_a>;
using LoaderB = Loader<cfg::tile_n, cfg::b_transposed, cfg::copy_b>;
constexpr int stage_bytes = TileA::bytes + TileB::bytes;

extern __shared__ __align__(128) char smem[];

struct MainLoop {
    LoaderA loader_a;
    LoaderB loader_b;
    int row0, col0;         // of the CTA's tile in D
    int first_k, k_tiles;   // of the CTA's split of k: its first element, its k tiles
    int warp_row, warp_col; // of the warp tile in the CTA's tile
    int first_step;         // of the warp's slice of a k tile

    __device__ __forceinline__ void load_tile(int index, int stage) const {
        char* target = smem + stage * stage_bytes;
        const int k0 = first_k + index * cfg::tile_k;
        if constexpr (cfg::a_transposed)
            loader_a.load(target, k0, row0);
        else
            loader_a.load(target, row0, k0);
        if constexpr (cfg::b_transposed)
            loader_b.load(target + TileA::bytes, col0, k0);
        else
            loader_b.load(target + TileA::bytes, k0, col0);
    }

    __device__ __forceinline__ void load_step(Fragments& f, int stage, int step) const {
        const char* tile = smem + stage * stage_bytes;
        load_fragments(f, tile, tile + TileA::bytes, warp_row, warp_col, first_step + step);
    }

    __device__ __forceinline__ void multiply_step(Accumulator<cfg::accumulate_f16>& acc, int stage, int step) const {
        Fragments f;
        if constexpr (cfg::reload_a) {
            const char* tile = smem + stage * stage_bytes;
            load_b(f.b, tile + TileA::bytes, warp_col, first_step + step);
#pragma unroll
            for (int j = 0; j < cfg::mma_tiles_n; ++j) {
                __syncwarp(); // NOTE: without it ptxas loads A once and keeps it
#pragma unroll
                for (int i = 0; i < cfg::mma_tiles_m; ++i) {
                    load_a(f.a[i], tile, warp_row, i, first_step + step);
                    acc.multiply(i, j, f);
                }
            }
        } else {
            load_step(f, stage, step);
            mma_step(acc, f);
        }
    }

    // One stage: load, wait, multiply.
    __device__ __forceinline__ void run_single(Accumulator<cfg::accumulate_f16>& acc) const {
        for (int tile = 0; tile < k_tiles; ++tile) {
            __syncthreads();
            load_tile(tile, 0);
            __syncthreads();
#pragma unroll
            for (int step = 0; step < cfg::k_steps; ++step) multiply_step(acc, 0, step);
        }
    }

    // Issues the copies of k tile `index`. Always commits a group, so that the number of groups in flight does not
    // depend on k.
    __device__ __forceinline__ void prefetch(int index, int stage) const {
        if (index < k_tiles) load_tile(index, stage);
        cp_async_commit();
    }

    __device__ __forceinline__ void run_multistage(Accumulator<cfg::accumulate_f16>& acc) const {
        for (int i = 0; i < cfg::stages - 1; ++i) prefetch(i, i);
        int read = 0, write = cfg::stages - 1;
        for (int tile = 0; tile < k_tiles; ++tile) {
            cp_async_wait<cfg::stages - 2>();
            __syncthreads();
            prefetch(tile + cfg::stages - 1, write);
#pragma unroll
            for (int step = 0; step < cfg::k_steps; ++step) multiply_step(acc, read, step);
            write = read;
            read = read + 1 == cfg::stages ? 0 : read + 1;
        }
    }

    // The last step of a k tile loads the first fragments of the next tile, so that the tensor cores do not wait for
    // shared memory between stages. NOTE: the first step issues all copies; spread over the steps they were 9 %
    // slower on an H200.
    __device__ __forceinline__ void run_double_buffered(Accumulator<cfg::accumulate_f16>& acc) const {
        for (int i = 0; i < cfg::stages - 1; ++i) prefetch(i, i);
        cp_async_wait<cfg::stages - 2>();
        __syncthreads();
        Fragments f[2];
        load_step(f[0], 0, 0);
        int read = 0, write = cfg::stages - 1;
        for (int tile = 0; tile < k_tiles; ++tile) {
#pragma unroll
            for (int step = 0; step < cfg::k_steps; ++step) {
                if (step + 1 == cfg::k_steps) {
                    cp_async_wait<cfg::stages - 2>();
                    __syncthreads();
                    write = read;
                    read = read + 1 == cfg::stages ? 0 : read + 1;
                }
                if (step == 0) prefetch(tile + cfg::stages - 1, write);
                load_step(f[(step + 1) % 2], read, (step + 1) % cfg::k_steps);
                mma_step(acc, f[step % 2]);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(cfg::threads, MIN_CTAS_PER_SM) mma_sync(GEMM_PARAMETERS) {
    release_next_kernel();
    const int tiles_m = (m + cfg::tile_m - 1) / cfg::tile_m, tiles_n = (n + cfg::tile_n - 1) / cfg::tile_n;
    const TileCoord tile = raster_tile(blockIdx.x, tiles_m, tiles_n);
    const int split = blockIdx.y;
    const long long batch = blockIdx.z;
    a += batch * stride_a, b += batch * stride_b, d += batch * stride_d;
    if constexpr (cfg::has_c) c += batch * stride_c;

    const int all_k_tiles = (k + cfg::tile_k - 1) / cfg::tile_k;
    const int split_tiles = (all_k_tiles + cfg::split_k - 1) / cfg::split_k;
    const int first_tile = min(split * split_tiles, all_k_tiles);
    const int warp = threadIdx.x / 32;
    const int slice = warp / (cfg::warps_m * cfg::warps_n), within = warp % (cfg::warps_m * cfg::warps_n);

    const MainLoop loop{cfg::a_transposed ? LoaderA(a, lda, k, m) : LoaderA(a, lda, m, k),
                        cfg::b_transposed ? LoaderB(b, ldb, n, k) : LoaderB(b, ldb, k, n),
                        tile.m * cfg::tile_m,
                        tile.n * cfg::tile_n,
                        first_tile * cfg::tile_k,
                        min(split_tiles, all_k_tiles - first_tile),
                        within / cfg::warps_n * cfg::warp_m,
                        within % cfg::warps_n * cfg::warp_n,
                        slice * cfg::k_steps};
    Accumulator<cfg::accumulate_f16> acc;
    acc.clear();
    await_previous_kernel();
    if constexpr (cfg::stages == 1)
        loop.run_single(acc);
    else if constexpr (cfg::double_buffer)
        loop.run_double_buffered(acc);
    else
        loop.run_multistage(acc);
    if constexpr (cfg::stages > 1) cp_async_wait<0>();
    __syncthreads();

    ElementAccumulator values[accumulator_values];
    acc.read(values);
    reduce_slices(values, smem, slice);
    if constexpr (cfg::split_k > 1) {
        const int tiles = tiles_m * tiles_n;
        SplitK<accumulator_values, 32 * cfg::warps_m * cfg::warps_n> reducer(
            workspace, int(batch) * tiles + blockIdx.x, tiles * gridDim.z);
        if (!reducer.reduce(values, threadIdx.x, slice == 0, split)) return;
    }
    finish_counts(values, k);
    const Epilogue epilogue{c, d, bias, ldc, ldd, m, n, alpha, beta};
    store_tile(values, epilogue, smem, loop.row0, loop.col0, loop.warp_row, loop.warp_col, slice == 0);
}
