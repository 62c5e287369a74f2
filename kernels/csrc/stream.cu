// GEMM where M or N is at most 16 and rows of both operands run along k: the large operand, the weights, is streamed
// once by TMA through a ring in shared memory, the thin operand waits there.
//
// Tiles: a block computes 16 * WARP_TILES rows of the weights by at most 16 thin ones. A panel is 128 bytes of k; a
// stage is WARPS * PANELS neighbouring panels, one TMA box each, so that some KiB of every row are asked for together.
// Warp w loads and multiplies panels w, w + WARPS, .. of every stage: its ring is its own, nobody else fills or empties
// it, and the sums of all warps meet at the end of a tile. Blocks are persistent: unit u = blockIdx.x, + gridDim.x, ..
// is (wide tile, combo), the combo fastest: (batch, thin tile, split of k). Loads run ahead into the next units.
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
#include "stream_config.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/dependent.cuh"
#include "ptx/elect.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/mma.cuh"
#include "tile/ring.cuh"
#include "tile/thin_finish.cuh"

using Place = Slot<cfg::stages>;

extern __shared__ char smem[];

// One block's work between two visits to D: a split of a tile, panels [begin, end) of k.
struct Unit {
    int wide, combo, split, tile, batch, row0, begin, end; // row0: of the thin operand
};

struct Work {
    int panels, wide_tiles, thin_tiles, combos, units;

    __device__ __forceinline__ Work(int wide, int thin, int k, int batch)
        : panels((k + cfg::panel_k - 1) / cfg::panel_k), wide_tiles((wide + cfg::tile_wide - 1) / cfg::tile_wide),
          thin_tiles((thin + cfg::tile_thin - 1) / cfg::tile_thin), combos(cfg::split_k * thin_tiles * batch),
          units(wide_tiles * combos) {}

    __device__ __forceinline__ Unit unit(int index) const {
        const int wide = index / combos, combo = index - wide * combos;
        const int split = combo % cfg::split_k, column = combo / cfg::split_k, batch = column / thin_tiles;
        return {wide,
                combo,
                split,
                column * wide_tiles + wide,
                batch,
                (column - batch * thin_tiles) * cfg::tile_thin,
                panels * split / cfg::split_k,
                panels * (split + 1) / cfg::split_k};
    }
};

struct SharedMemory {
    static constexpr int box_bytes = cfg::tile_wide * cfg::panel_bytes, stage_bytes = cfg::stage_panels * box_bytes;
    static constexpr int ring_bytes = cfg::stages * stage_bytes;
    static constexpr int thin_bytes = cfg::thin_panels * cfg::tile_thin * cfg::panel_bytes;
    static constexpr int warp_sums = cfg::tile_thin * sums_stride; // elements
    static constexpr int sums_bytes = cfg::warps * warp_sums * int(sizeof(Real));
    static_assert(box_bytes % 1024 == 0, "the swizzle repeats every 1024 bytes");
    unsigned base; // a multiple of 1024

    __device__ __forceinline__ unsigned panel(int stage, int index) const {
        return base + stage * stage_bytes + index * box_bytes;
    }
    __device__ __forceinline__ unsigned thin() const { return base + ring_bytes; }
    __device__ __forceinline__ Real* sums() const {
        return reinterpret_cast<Real*>(smem + (base - smem_address(smem)) + ring_bytes + thin_bytes);
    }
    __device__ __forceinline__ unsigned full(int stage, int warp) const {
        return thin() + thin_bytes + sums_bytes + (stage * cfg::warps + warp) * 8;
    }
    // Byte offset of 16-byte chunk `chunk` of 128-byte row `row`: TMA's 128-byte swizzle.
    static __device__ __forceinline__ unsigned swizzled(int row, int chunk) {
        return row * cfg::panel_bytes + ((chunk ^ (row & 7)) << 4);
    }
};

// Brings the boxes of the first stages of the block's first unit into the L2, one a thread.
__device__ __forceinline__ void prefetch_weights(const Work& work, const TensorMap* map) {
    if (threadIdx.x >= cfg::prefetch * cfg::stage_panels) return;
    const Unit unit = work.unit(blockIdx.x);
    const int panel = unit.begin + threadIdx.x;
    if (panel < unit.end) tma_prefetch(map, panel * cfg::panel_k, unit.wide * cfg::tile_wide, unit.batch);
}

// A warp's walk over the stages of all units of its block, ahead of the multiplications.
struct Loader {
    const Work& work;
    const SharedMemory& shared;
    const TensorMap* map;
    int warp, index;
    Unit unit;
    int panel; // first one of the stage

    __device__ __forceinline__ Loader(const Work& work, const SharedMemory& shared, const TensorMap* map, int warp)
        : work(work), shared(shared), map(map), warp(warp), index(blockIdx.x), unit(work.unit(index)), panel(unit.begin) {}

    // Loads the warp's panels of the next stage, if there is one, into `stage`. Called by whole warps.
    __device__ __forceinline__ void next(int stage) {
        while (panel >= unit.end) {
            const int following = index + gridDim.x;
            if (following >= work.units) return;
            index = following;
            unit = work.unit(index);
            panel = unit.begin;
        }
        if (elect_lane()) load(stage);
        panel += cfg::stage_panels;
    }

private:
    __device__ __forceinline__ void load(int stage) const {
        const int left = unit.end - panel - warp; // 0 or less: nothing of this stage is the warp's
        const int mine = left <= 0 ? 0 : min(cfg::panels, (left + cfg::warps - 1) / cfg::warps);
        const unsigned full = shared.full(stage, warp);
        mbarrier_arrive_expect(full, mine * SharedMemory::box_bytes);
#pragma unroll
        for (int p = 0; p < cfg::panels; ++p) {
            const int at = warp + p * cfg::warps;
            if (p < mine)
                tma_load<cfg::hint>(shared.panel(stage, at), map, full, (panel + at) * cfg::panel_k,
                                    unit.wide * cfg::tile_wide, unit.batch);
        }
    }
};

// The thin operand in memory.
struct ThinOperand {
    const In* data;
    long long stride, batch_stride;
    int rows, k;

    // The unit's rows and panels to shared memory, zeros where there are none; all threads.
    __device__ __forceinline__ void load_slice(unsigned to, const Unit& unit) const {
        constexpr int chunks = cfg::panel_bytes / 16, chunk_k = cfg::panel_k / chunks;
        const In* from = data + unit.batch * batch_stride;
        const int all = (unit.end - unit.begin) * cfg::tile_thin * chunks;
        for (int i = threadIdx.x; i < all; i += cfg::threads) {
            const int chunk = i % chunks, line = i / chunks;
            const int row = unit.row0 + line % cfg::tile_thin;
            const int column = (unit.begin + line / cfg::tile_thin) * cfg::panel_k + chunk * chunk_k;
            const bool inside = row < rows && column < k;
            cp_async<16>(to + SharedMemory::swizzled(line, chunk), from + (inside ? row * stride + column : 0), inside);
        }
        cp_async_commit();
        cp_async_wait<0>();
    }
};

// A warp's sums of a tile: the weights are the 16 rows of an mma, thin rows its 8 columns.
struct PanelSums {
    static constexpr int k_steps = cfg::panel_bytes / 32;
    Real value[cfg::warp_tiles][cfg::thin_tiles][4] = {};

    // Adds the product of a panel of weights and panel `index` of the thin slice.
    __device__ __forceinline__ void multiply(unsigned weights, unsigned thin, int index) {
        unsigned a[k_steps][cfg::warp_tiles][4], b[k_steps][cfg::thin_tiles][2];
        load_weights(a, weights);
        load_thin(b, thin, index * cfg::tile_thin);
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
                for (int j = 0; j < cfg::thin_tiles; ++j) Mma<In>::full(value[i][j], a[s][i], b[s][j]);
    }
    __device__ __forceinline__ void put(Real* sums) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
            for (int j = 0; j < cfg::thin_tiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int thin = j * 8 + 2 * t + e % 2;
                    if (thin < cfg::tile_thin) sums[thin * sums_stride + i * 16 + g + e / 2 * 8] = value[i][j][e];
                }
    }

private:
    static __device__ __forceinline__ void load_weights(unsigned (&a)[k_steps][cfg::warp_tiles][4], unsigned weights) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
                ldmatrix_x4(a[s][i], weights + i * 16 * cfg::panel_bytes + SharedMemory::swizzled(lane % 16, 2 * s + lane / 16));
    }
    // NOTE: fewer than 8 thin rows stand in several columns; those beyond the tile are never stored.
    static __device__ __forceinline__ void load_thin(unsigned (&b)[k_steps][cfg::thin_tiles][2], unsigned thin, int line) {
        const int lane = threadIdx.x % 32;
        constexpr int steps = 2 / cfg::thin_tiles; // of one ldmatrix
#pragma unroll
        for (int s = 0; s < k_steps; s += steps) {
            const int row = steps == 2 ? lane % cfg::tile_thin : lane % 8 + lane / 16 * 8;
            const int chunk = 2 * s + (steps == 2 ? lane / 8 : lane / 8 % 2);
            unsigned r[4];
            ldmatrix_x4(r, thin + SharedMemory::swizzled(line + row, chunk));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                unsigned(&to)[2] = steps == 2 ? b[s + i][0] : b[s][i];
                to[0] = r[2 * i], to[1] = r[2 * i + 1];
            }
        }
    }
};

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
