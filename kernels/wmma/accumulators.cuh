// The accumulators of a warp tile, wmma fragments of 16 x 16, and their way to D: whole fragments to shared memory in the
// accumulate type, from there fixed elements to every thread.
#pragma once
#include "common/ptx/load_store.cuh"
#include "common/ptx/wmma.cuh"
#include "common/epilogue.cuh"
#include "common/split_k.cuh"
#include "wmma/config.cuh"

template <bool F16> struct StagedElementOf { using type = float; };
template <> struct StagedElementOf<true> { using type = f16; };
using StagedElement = StagedElementOf<cfg::accumulate_f16>::type;

struct WarpAccumulator {
    WmmaAccumulator<StagedElement> tile[cfg::wmma_tiles_m][cfg::wmma_tiles_n];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::wmma_tiles_n; ++j) tile[i][j] = WmmaAccumulator<StagedElement>{};
    }

    // Multiplies one k step. SNAKE reverses every other row of wmma tiles, so that fragments are reused.
    __device__ __forceinline__ void multiply(const WmmaOperand<In> (&a)[cfg::wmma_tiles_m],
                                             const WmmaOperand<In> (&b)[cfg::wmma_tiles_n]) {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i) {
#pragma unroll
            for (int step = 0; step < cfg::wmma_tiles_n; ++step) {
                const int j = cfg::snake && i % 2 ? cfg::wmma_tiles_n - 1 - step : step;
                if constexpr (cfg::a_transposed && cfg::b_transposed)
                    wmma_mma_col_col(tile[i][j], a[i], b[j]);
                else if constexpr (cfg::a_transposed)
                    wmma_mma_col_row(tile[i][j], a[i], b[j]);
                else if constexpr (cfg::b_transposed)
                    wmma_mma_row_col(tile[i][j], a[i], b[j]);
                else
                    wmma_mma_row_row(tile[i][j], a[i], b[j]);
            }
        }
    }
};

// TILE_M x TILE_N accumulators in shared memory: 16 x 16 blocks, or rows eight elements longer than their data.
struct StagedTile {
    static constexpr int stride = cfg::blocked ? 16 : cfg::tile_n + 8;

    static __device__ __forceinline__ constexpr int element(int row, int col) {
        if constexpr (cfg::blocked)
            return (row / 16 * (cfg::tile_n / 16) + col / 16) * 256 + row % 16 * 16 + col % 16;
        else
            return row * stride + col;
    }
    static __device__ __forceinline__ void store(char* smem, const WarpAccumulator& accumulator, int warp_row, int warp_col) {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::wmma_tiles_n; ++j) {
                const int at = element(warp_row + i * 16, warp_col + j * 16);
                wmma_store<stride>(smem_address(smem + at * int(sizeof(StagedElement))), accumulator.tile[i][j]);
            }
    }
};

// The elements of D that one thread finishes: groups of four neighbours in a row, one group for each thread of the CTA in
// turn, so that a warp writes consecutive addresses.
struct StoreTile {
    static constexpr int values = cfg::tile_m * cfg::tile_n / cfg::threads;
    using Reducer = SplitK<values, cfg::threads>;

    // Moves the elements from shared memory to D.
    static __device__ __forceinline__ void store(const char* smem, const Epilogue& epilogue, int row0, int col0) {
#pragma unroll 4
        for (int i = 0; i < values / 4; ++i) {
            float group[4];
            read_group(group, smem, i);
            store_group(group, epilogue, row0, col0, i);
        }
    }
    // Moves the partials from shared memory to the workspace.
    static __device__ __forceinline__ void store_partial(const char* smem, Reducer& reducer, int split) {
#pragma unroll 4
        for (int i = 0; i < values / 4; ++i) {
            float group[4];
            read_group(group, smem, i);
#pragma unroll
            for (int e = 0; e < 4; ++e) reducer.store_partial(group[e], i * 4 + e, threadIdx.x, split);
        }
    }
    // Adds up the splits in the workspace and stores D.
    static __device__ __forceinline__ void store(const Reducer& reducer, const Epilogue& epilogue, int row0, int col0) {
#pragma unroll 4
        for (int i = 0; i < values / 4; ++i) {
            float group[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) group[e] = reducer.sum(i * 4 + e, threadIdx.x);
            store_group(group, epilogue, row0, col0, i);
        }
    }

private:
    static __device__ __forceinline__ void position(int i, int& row, int& col) {
        const int group = threadIdx.x + i * cfg::threads;
        row = group / (cfg::tile_n / 4), col = group % (cfg::tile_n / 4) * 4;
    }
    static __device__ __forceinline__ void read_group(float (&x)[4], const char* smem, int i) {
        struct alignas(4 * sizeof(StagedElement)) Group { StagedElement x[4]; };
        int row, col;
        position(i, row, col);
        const Group group = *reinterpret_cast<const Group*>(smem + StagedTile::element(row, col) * int(sizeof(StagedElement)));
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = to_accumulator(group.x[e]);
    }
    static __device__ __forceinline__ void store_group(const float (&x)[4], const Epilogue& epilogue, int row0, int col0, int i) {
        struct alignas(4 * sizeof(Out)) Group { Out x[4]; };
        int row, col;
        position(i, row, col);
        row += row0, col += col0;
        if (cfg::align_d >= int(sizeof(Group)) && row < epilogue.m && col + 4 <= epilogue.n) {
            Group group;
#pragma unroll
            for (int e = 0; e < 4; ++e) group.x[e] = epilogue.apply(x[e], row, col + e);
            *reinterpret_cast<Group*>(epilogue.d + row * epilogue.ldd + col) = group;
        } else {
            epilogue.store2(x[0], x[1], row, col);
            epilogue.store2(x[2], x[3], row, col + 2);
        }
    }
};
