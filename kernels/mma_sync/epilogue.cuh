// From accumulators to D: the reduction over k slices, then direct stores or stores through shared memory.
#pragma once
#include "common/epilogue.cuh"
#include "common/raster.cuh"
#include "mma_sync/compute.cuh"

// Adds the accumulators of all k slices into slice 0, in slice order, through shared memory.
__device__ __forceinline__ void reduce_slices(ElementAccumulator (&values)[accumulator_values], char* smem, int slice) {
    if constexpr (cfg::warps_k > 1) {
        constexpr int threads = 32 * cfg::warps_m * cfg::warps_n;
        ElementAccumulator* staged = reinterpret_cast<ElementAccumulator*>(smem);
        const int thread = threadIdx.x % threads;
        for (int s = 1; s < cfg::warps_k; ++s) {
            if (slice == s)
                for (int i = 0; i < accumulator_values; ++i) staged[i * threads + thread] = values[i];
            __syncthreads();
            if (slice == 0)
#pragma unroll
                for (int i = 0; i < accumulator_values; ++i) values[i] += staged[i * threads + thread];
            __syncthreads();
        }
    }
}

// Turns counts of products that are -1 into dot products over k.
__device__ __forceinline__ void finish_counts(ElementAccumulator (&values)[accumulator_values], int k) {
    if constexpr (cfg::counts_signs) {
#pragma unroll
        for (int i = 0; i < accumulator_values; ++i) values[i] = k - 2 * values[i];
    }
}

__device__ __forceinline__ void store_direct(const ElementAccumulator (&values)[accumulator_values],
                                             const Epilogue& epilogue, int row0, int col0) {
#pragma unroll
    for (int i = 0; i < accumulator_values; i += 2) {
        const ValuePlace at = value_place(i);
        epilogue.store2(values[i], values[i + 1], row0 + at.base + at.row, col0 + at.column);
    }
}

using TileD = SmemTile<cfg::tile_m, cfg::tile_n * int(sizeof(Out)), SmemLayout::permuted>;

// Stores the finished elements of the warp tile in shared memory, two neighbours at a time.
__device__ __forceinline__ void stage_tile(const ElementAccumulator (&values)[accumulator_values],
                                           const Epilogue& epilogue, char* smem, TileCoord origin, int warp_row, int warp_col) {
    struct alignas(2 * sizeof(Out)) Pair { Out x, y; };
    constexpr bool reads_memory = cfg::has_c || cfg::has_bias;
#pragma unroll
    for (int i = 0; i < accumulator_values; i += 2) {
        const ValuePlace at = value_place(i);
        const int base = warp_row + at.base, col = warp_col + at.column, row = origin.m + base + at.row;
        const bool x_inside = !reads_memory || (row < epilogue.m && origin.n + col < epilogue.n);
        const bool y_inside = !reads_memory || (row < epilogue.m && origin.n + col + 1 < epilogue.n);
        const Pair pair{x_inside ? epilogue.apply(values[i], row, origin.n + col) : Out{},
                        y_inside ? epilogue.apply(values[i + 1], row, origin.n + col + 1) : Out{}};
        const int byte = col * int(sizeof(Out));
        *reinterpret_cast<Pair*>(smem + TileD::chunk_from(base, at.row, byte / 16) + byte % 16) = pair;
    }
}

// Copies the staged tile to D, 16 bytes a thread, so that a warp writes whole cache lines.
__device__ __forceinline__ void copy_chunks(const Epilogue& epilogue, const char* smem, TileCoord origin) {
    constexpr int per_chunk = 16 / int(sizeof(Out));
    for (int id = threadIdx.x; id < cfg::tile_m * TileD::chunks; id += cfg::threads) {
        const int row = id / TileD::chunks, c = id % TileD::chunks;
        const int col = origin.n + c * per_chunk;
        if (origin.m + row >= epilogue.m || col >= epilogue.n) continue;
        *reinterpret_cast<uint4*>(epilogue.d + (origin.m + row) * epilogue.ldd + col) =
            *reinterpret_cast<const uint4*>(smem + TileD::chunk(row, c));
    }
}

// The same for rows of D that are not aligned: ALIGN_D bytes a thread, neighbouring threads neighbouring ones. NOTE: if each thread
// wrote a chunk element by element, every store of a warp would touch 16 sectors of the L2.
__device__ __forceinline__ void copy_narrow(const Epilogue& epilogue, const char* smem, TileCoord origin) {
    struct alignas(cfg::align_d) Access { char bytes[cfg::align_d]; };
    constexpr int size = sizeof(Out), across = cfg::tile_n * size / cfg::align_d; // accesses of a row
    constexpr int even = across & -across, lanes = even < 32 ? even : 32, team = cfg::threads / lanes;
    constexpr int apart = team < 8 ? 8 : team, count = (cfg::tile_m + apart - 1) / apart; // rows of a thread; the layout repeats after 8
    const int inside = (epilogue.n - origin.n) * size, rows = min(cfg::tile_m, epilogue.m - origin.m);
#pragma unroll 1
    for (int first = threadIdx.x / lanes; first < apart; first += team)
#pragma unroll 1
        for (int byte = threadIdx.x % lanes * cfg::align_d; byte < min(inside, cfg::tile_n * size); byte += lanes * cfg::align_d) {
            const char* source = smem + TileD::chunk(first, byte / 16) + byte % 16;
            char* target = reinterpret_cast<char*>(epilogue.d + (origin.m + first) * epilogue.ldd + origin.n) + byte;
            Access held[count];
#pragma unroll
            for (int i = 0; i < count; ++i)
                if (first + i * apart < rows) held[i] = *reinterpret_cast<const Access*>(source + i * apart * TileD::stride);
#pragma unroll
            for (int i = 0; i < count; ++i, target += apart * size * epilogue.ldd)
                if (first + i * apart < rows) *reinterpret_cast<Access*>(target) = held[i];
        }
}

__device__ __forceinline__ void store_tile(const ElementAccumulator (&values)[accumulator_values],
                                           const Epilogue& epilogue, char* smem, int row0, int col0, int warp_row, int warp_col, bool holds_values) {
    if constexpr (cfg::epilogue_smem) {
        if (holds_values) stage_tile(values, epilogue, smem, {row0, col0}, warp_row, warp_col);
        __syncthreads();
        if constexpr (cfg::align_d == 16)
            copy_chunks(epilogue, smem, {row0, col0});
        else
            copy_narrow(epilogue, smem, {row0, col0});
    } else if (holds_values) {
        store_direct(values, epilogue, row0 + warp_row, col0 + warp_col);
    }
}
