// The sums of a block tile as wmma fragments, one 16 x 16 tile each, and the way out of them: whole
// fragments to shared memory in the accumulate type, from there a fixed share to every thread.
#pragma once
#include "ptx/cp_async.cuh"
#include "ptx/wmma.cuh"
#include "tile/epilogue.cuh"
#include "tile/split_k.cuh"
#include "wmma_config.cuh"

template <bool F16> struct SumType { using type = float; };
template <> struct SumType<true> { using type = f16; };
using Sum = SumType<cfg::accumulate_f16>::type;

struct WarpSums {
    WmmaSum<Sum> tile[cfg::wmma_tiles_m][cfg::wmma_tiles_n];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::wmma_tiles_n; ++j) tile[i][j] = WmmaSum<Sum>{};
    }

    // One k step; SNAKE turns every other row of wmma tiles round to reuse fragments.
    __device__ __forceinline__ void multiply(const WmmaOperand<In> (&a)[cfg::wmma_tiles_m],
                                             const WmmaOperand<In> (&b)[cfg::wmma_tiles_n]) {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i) {
#pragma unroll
            for (int step = 0; step < cfg::wmma_tiles_n; ++step) {
                const int j = cfg::snake && i % 2 ? cfg::wmma_tiles_n - 1 - step : step;
                if constexpr (cfg::b_transposed)
                    wmma_mma_row_col(tile[i][j], a[i], b[j]);
                else
                    wmma_mma_row_row(tile[i][j], a[i], b[j]);
            }
        }
    }
};

// TILE_M x TILE_N sums in shared memory: 16 x 16 blocks, or rows eight elements longer than their data.
struct SumTile {
    static constexpr int stride = cfg::blocked ? 16 : cfg::tile_n + 8;

    static __device__ __forceinline__ constexpr int element(int row, int col) {
        if constexpr (cfg::blocked)
            return (row / 16 * (cfg::tile_n / 16) + col / 16) * 256 + row % 16 * 16 + col % 16;
        else
            return row * stride + col;
    }
    static __device__ __forceinline__ void store(char* smem, const WarpSums& sums, int warp_row, int warp_col) {
#pragma unroll
        for (int i = 0; i < cfg::wmma_tiles_m; ++i)
#pragma unroll
            for (int j = 0; j < cfg::wmma_tiles_n; ++j) {
                const int at = element(warp_row + i * 16, warp_col + j * 16);
                wmma_store<stride>(smem_address(smem + at * int(sizeof(Sum))), sums.tile[i][j]);
            }
    }
};

// What one thread brings to D: groups of four neighbours in a row, a whole block of threads apart, so
// that a warp writes consecutive addresses.
struct ThreadShare {
    static constexpr int values = cfg::tile_m * cfg::tile_n / cfg::threads;
    using Reducer = SplitK<values, cfg::threads>;

    // From shared memory to D.
    static __device__ __forceinline__ void store(const char* smem, const Epilogue& epilogue, int row0, int col0) {
#pragma unroll 4
        for (int i = 0; i < values / 4; ++i) {
            float group[4];
            read_group(group, smem, i);
            store_group(group, epilogue, row0, col0, i);
        }
    }
    // From shared memory to the workspace.
    static __device__ __forceinline__ void put(const char* smem, Reducer& reducer, int split) {
#pragma unroll 4
        for (int i = 0; i < values / 4; ++i) {
            float group[4];
            read_group(group, smem, i);
#pragma unroll
            for (int e = 0; e < 4; ++e) reducer.put(group[e], i * 4 + e, threadIdx.x, split);
        }
    }
    // From the workspace, summed over the splits, to D.
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
        struct alignas(4 * sizeof(Sum)) Group { Sum x[4]; };
        int row, col;
        position(i, row, col);
        const Group group = *reinterpret_cast<const Group*>(smem + SumTile::element(row, col) * int(sizeof(Sum)));
#pragma unroll
        for (int e = 0; e < 4; ++e) x[e] = to_real(group.x[e]);
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
