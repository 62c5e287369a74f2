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
// REPACK_A, REPACK_B: rows that are not multiples of 16 bytes are copied to such rows by a launch before, and A, B and their strides
// are those of the copy. Does not support: float, e4m3 and e5m2 before sm_89.
//
// Compiles as it lies here:  nvcc -cubin -arch=sm_80 -I. -DIN_TYPE=f16 -DOUT_TYPE=f16 -DA_TRANSPOSED=0
//   -DB_TRANSPOSED=1 -DTILE_M=128 -DTILE_N=128 -DTILE_K=32 -DRASTER=0 -DRASTER_SNAKE=0 -DSWIZZLE_SIZE=1 -DSPLIT_K=1 -DALIGN_D=16
//   -DACTIVATION=0 -DHAS_BIAS=0 -DHAS_C=0 -DWARPS_M=2 -DWARPS_N=2 -DWARPS_K=1 -DSTAGES=4 -DMMA_K=16
//   -DFRAGMENT_LOAD=1 -DCOPY_STEP=0 -DSMEM_LAYOUT=2 -DDOUBLE_BUFFER=1 -DSNAKE=1 -DACCUMULATE=0 -DEPILOGUE=1
//   -DCOPY_A=16 -DCOPY_B=16 -DREPACK_A=0 -DREPACK_B=0 -DMIN_CTAS_PER_SM=1 mma_sync/kernel.cu
#include "common/epilogue.cuh"
#include "common/ptx/control.cuh"
#include "common/ptx/cp_async.cuh"
#include "common/raster.cuh"
#include "common/repack.cuh"
#include "common/smem_tile.cuh"
#include "common/split_k.cuh"
#include "mma_sync/compute.cuh"
#include "mma_sync/config.cuh"
#include "mma_sync/epilogue.cuh"

template <int EXTENT, bool K_MAJOR, int COPY, int BYTES>
using Loader = TileLoader<In, EXTENT, K_MAJOR, cfg::tile_k, cfg::threads, COPY, (cfg::stages > 1), cfg::smem_layout, BYTES,
                          cfg::shift<K_MAJOR>>;
using LoaderA = Loader<cfg::tile_m, !cfg::a_transposed, cfg::copy_a, cfg::thread_bytes_a>;
using LoaderB = Loader<cfg::tile_n, cfg::b_transposed, cfg::copy_b, cfg::thread_bytes_b>;
constexpr int stage_bytes = TileA::bytes + TileB::bytes;

struct MainLoop {
    LoaderA loader_a;
    LoaderB loader_b;
    FragmentLoader fragments;
    int k_tiles;

    // Loads the next k tile to the stage at byte `stage` of shared memory.
    __device__ __forceinline__ void load_tile(int index, int stage) {
        loader_a.load(smem, stage, index == 0);
        loader_b.load(smem, stage + TileA::bytes, index == 0);
        loader_a.advance();
        loader_b.advance();
    }

    // Issues slice `slice` of `slices` of the copies of the next k tile, `index`, which is not tile 0. NOTE: if there is no such
    // tile, they write zeros that nothing reads, which costs less than branches around them.
    __device__ __forceinline__ void prefetch_slice(int index, int stage, int slice, int slices) {
        constexpr int copies = LoaderA::rounds + LoaderB::rounds;
        const bool wanted = index < k_tiles;
#pragma unroll
        for (int i = 0; i < copies; ++i) {
            if (i < slice * copies / slices || i >= (slice + 1) * copies / slices) continue;
            if (i < LoaderA::rounds)
                loader_a.load_round(smem, stage, i, 0, wanted);
            else
                loader_b.load_round(smem, stage + TileA::bytes, i - LoaderA::rounds, 0, wanted);
        }
        if (slice + 1 == slices) {
            loader_a.advance();
            loader_b.advance();
        }
    }

    // Fills all stages but one. Always commits as many groups, so that the number of groups in flight does not depend on k.
    __device__ __forceinline__ void fill_stages() {
#pragma unroll 1
        for (int i = 0; i < cfg::stages - 1; ++i) {
            if (i < k_tiles) load_tile(i, i * stage_bytes);
            cp_async_commit();
        }
    }

    // Loads the fragments of a k step and multiplies them.
    __device__ __forceinline__ void multiply_step(Accumulator<cfg::accumulate_f16>& acc, int stage, int step) const {
        Fragments f;
        if constexpr (cfg::reload_a) {
            if constexpr (!cfg::b_by_x2)
#pragma unroll
                for (int pair = 0; pair < FragmentLoader::groups_n; ++pair) fragments.load_b(f.b, stage, pair, step);
#pragma unroll
            for (int j = 0; j < cfg::mma_tiles_n; ++j)
#pragma unroll
                for (int i = 0; i < cfg::mma_tiles_m; ++i) {
                    __syncwarp(); // NOTE: without it ptxas loads fragments once and keeps them
                    if constexpr (cfg::b_by_x2) fragments.load_b_x2(f.b[j], stage, j, step);
                    fragments.load_a(f.a[i], stage, i, step);
                    acc.multiply(i, j, f);
                }
        } else {
            fragments.load(f, stage, step);
#pragma unroll
            for (int i = 0; i < cfg::mma_tiles_m; ++i) mma_row(acc, f, i);
        }
    }

    // One stage: load, wait, multiply.
    __device__ __forceinline__ void run_single(Accumulator<cfg::accumulate_f16>& acc) {
        for (int tile = 0; tile < k_tiles; ++tile) {
            __syncthreads();
            load_tile(tile, 0);
            __syncthreads();
#pragma unroll
            for (int step = 0; step < cfg::k_steps; ++step) multiply_step(acc, 0, step);
        }
    }

    __device__ __forceinline__ void run_multistage(Accumulator<cfg::accumulate_f16>& acc) {
        fill_stages();
        int read = 0, write = (cfg::stages - 1) * stage_bytes;
        for (int tile = 0; tile < k_tiles; ++tile) {
            cp_async_wait<cfg::stages - 2>();
            __syncthreads();
#pragma unroll
            for (int step = 0; step < cfg::k_steps; ++step) {
                if (step == cfg::copy_step) {
                    prefetch_slice(tile + cfg::stages - 1, write, 0, 1);
                    cp_async_commit();
                }
                multiply_step(acc, read, step);
            }
            write = read;
            read = following(read);
        }
    }

    // While one k step is multiplied, the fragments of the next are loaded, in the last step those of the next k tile, so that
    // the tensor cores do not wait for shared memory. NOTE: a round through all stages is unrolled, so that their
    // addresses and those of the copies are constants in the instructions; other direct loads would need too many registers.
    __device__ __forceinline__ void run_double_buffered(Accumulator<cfg::accumulate_f16>& acc) {
        fill_stages();
        cp_async_wait<cfg::stages - 2>();
        __syncthreads();
        Fragments f[2];
        fragments.load(f[0], 0, 0);
        constexpr int unrolled = cfg::keeps_addresses ? cfg::stages : 1;
        for (int tile = 0, stage = 0;;) {
#pragma unroll
            for (int i = 0; i < unrolled; ++i, ++tile) {
                if (tile >= k_tiles) return;
                multiply_tile(acc, f, tile, unrolled > 1 ? i : stage);
                stage = stage + 1 == cfg::stages ? 0 : stage + 1;
            }
        }
    }

    // Multiplies a k tile, whose first fragments are in f[0], and loads those of the next there. Between the rows of mma tiles
    // come the fragments of the next k step and, before the last step, the copies of the tile that takes the freed stage.
    // NOTE: before copies that follow a fragment load the assembler puts three empty instructions; so a step has one group.
    __device__ __forceinline__ void multiply_tile(Accumulator<cfg::accumulate_f16>& acc, Fragments (&f)[2], int tile, int stage) {
        constexpr int rows = cfg::mma_tiles_m, pieces = FragmentLoader::pieces, last = cfg::k_steps - 1;
        const int next = (stage + 1) % cfg::stages * stage_bytes, freed = (stage + cfg::stages - 1) % cfg::stages * stage_bytes;
#pragma unroll
        for (int step = 0; step < cfg::k_steps; ++step) {
            if (step == last) {
                cp_async_commit();
                cp_async_wait<cfg::stages - 2>();
                __syncthreads();
            }
#pragma unroll
            for (int i = 0; i < rows; ++i) {
#pragma unroll
                for (int piece = i * pieces / rows; piece < (i + 1) * pieces / rows; ++piece)
                    fragments.load_piece(f[(step + 1) % 2], step == last ? next : stage * stage_bytes, (step + 1) % cfg::k_steps, piece);
                if (step < last && i == rows - 1) prefetch_slice(tile + cfg::stages - 1, freed, step, last);
                mma_row(acc, f[step % 2], i);
            }
        }
    }

    static __device__ __forceinline__ int following(int stage) {
        return stage == (cfg::stages - 1) * stage_bytes ? 0 : stage + stage_bytes;
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

    // NOTE: a repacked row along k has up to 15 bytes of zeros in front; of an operand whose rows lie along m or n, as many rows
    // that it does not have count as zeros.
    const int front = cfg::repacks_k ? -k & (cfg::chunk_k - 1) : 0;
    const KTiles k_tiles = split_range<cfg::tile_k, cfg::split_k>(k + front, split);
    const KTiles k_rows{k_tiles.begin - front, k_tiles.count, k_tiles.pad + (k_tiles.begin + k_tiles.pad > 0 ? 0 : front)};
    const int row0 = tile.m * cfg::tile_m, col0 = tile.n * cfg::tile_n, warp = threadIdx.x / 32;
    const int slice = warp / (cfg::warps_m * cfg::warps_n), within = warp % (cfg::warps_m * cfg::warps_n);

    const int warp_row = within / cfg::warps_n * cfg::warp_m, warp_col = within % cfg::warps_n * cfg::warp_n;
    MainLoop loop{LoaderA(a, lda, m, row0, cfg::a_transposed ? k_rows : k_tiles),
                        LoaderB(b, ldb, n, col0, cfg::b_transposed ? k_tiles : k_rows),
                        FragmentLoader(warp_row, warp_col, slice * cfg::k_steps), k_tiles.count};
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
    store_tile(values, epilogue, smem, row0, col0, warp_row, warp_col, slice == 0);
}

#if REPACK_A || REPACK_B
// Rows along m or n, and rows along k.
extern "C" __global__ void __launch_bounds__(256) repack_rows(REPACK_PARAMETERS) {
    release_next_kernel();
    await_previous_kernel();
    repack_row<false>(source, target, rows, bytes, source_stride, target_stride, source_batch, target_batch);
}
extern "C" __global__ void __launch_bounds__(256) repack_rows_of_k(REPACK_PARAMETERS) {
    release_next_kernel();
    await_previous_kernel();
    repack_row<true>(source, target, rows, bytes, source_stride, target_stride, source_batch, target_batch);
}
#endif
