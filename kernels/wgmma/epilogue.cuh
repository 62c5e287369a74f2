// Epilogue: accumulators to D, directly in stores of two neighbours, or through shared memory in 16-byte stores. A warp owns 16
// rows of each atom of its warpgroup, and stages only those.
#pragma once
#include "common/ptx/load_store.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/wgmma.cuh"
#include "common/raster.cuh"
#include "common/smem_tile.cuh"
#include "wgmma/config.cuh"

using Accumulator = WgmmaAccumulator<cfg::atoms, cfg::tile_n, cfg::accumulate_f16, cfg::a_transposed, !cfg::b_transposed>;

// First of a warp's 16 rows of an atom, in the tile of the CTA.
__device__ __forceinline__ int first_row(int warp, int atom) {
    return (warp / 4 * cfg::atoms + atom) * 64 + warp % 4 * 16;
}

__device__ __forceinline__ void store_direct(const Accumulator& acc, const Epilogue& epilogue, TileCoord origin, int warp) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int atom = 0; atom < cfg::atoms; ++atom) {
        const int row = origin.m + first_row(warp, atom) + Accumulator::lane_row(lane);
        const int col = origin.n + Accumulator::lane_column(lane);
#pragma unroll
        for (int p = 0; p < Accumulator::pairs; ++p) {
            const Pair pair = acc.pair(atom, p);
            epilogue.store2(pair.x, pair.y, row + Accumulator::row_step(p), col + Accumulator::column_step(p));
        }
    }
}

using TileD = SmemTile<cfg::tile_m, cfg::tile_n * int(sizeof(Out)), SmemLayout::xor_>;

// Four 8 x 8 matrices at a time: rows 0 and 8 of the warp at one 16-byte column, then at the next. NOTE:
// `base` is a multiple of 16, so the swizzle of a row follows from the lane alone.
__device__ __forceinline__ void stage_rows(const Accumulator& acc, int atom, const Epilogue& epilogue, unsigned smem,
                                            TileCoord origin, int base) {
    constexpr int together = cfg::has_c ? 16 : 4; // pairs
    const int lane = threadIdx.x % 32;
    const int row = origin.m + base + Accumulator::lane_row(lane), col = origin.n + Accumulator::lane_column(lane);
#pragma unroll
    for (int first = 0; first < Accumulator::pairs; first += together) {
        const Epilogue here = epilogue.pinned();
        OutPair held[together] = {};
        if (here.reads_c())
#pragma unroll
            for (int i = 0; i < together && first + i < Accumulator::pairs; ++i)
                held[i] = load_c<false>(here, row + Accumulator::row_step(first + i), col + Accumulator::column_step(first + i));
#pragma unroll
        for (int p = first; p < first + together && p < Accumulator::pairs; p += 4) {
            unsigned four[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                four[i] = finish_pair<false>(acc.pair(atom, p + i), held[p - first + i], here,
                                             col + Accumulator::column_step(p + i));
            stmatrix_x4(smem + TileD::chunk_from(base, lane % 16, p / 2 + lane / 16), four);
        }
    }
}

// Copies 16 staged rows to D in 16-byte chunks; if ALIGN_D is 16, n is a multiple of a chunk.
__device__ __forceinline__ void copy_rows(const Epilogue& epilogue, const char* smem, TileCoord origin, int base) {
    constexpr int per_chunk = 16 / int(sizeof(Out));
#pragma unroll 4
    for (int id = threadIdx.x % 32; id < 16 * TileD::chunks; id += 32) {
        const int row = id / TileD::chunks, c = id % TileD::chunks;
        const int col = origin.n + c * per_chunk;
        if (origin.m + base + row >= epilogue.m || col >= epilogue.n) continue;
        const char* source = smem + TileD::chunk_from(base, row, c);
        Out* target = epilogue.d + (origin.m + base + row) * epilogue.ldd + col;
        if constexpr (cfg::align_d == 16)
            *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
        else
            for (int e = 0; e < min(per_chunk, epilogue.n - col); ++e) target[e] = reinterpret_cast<const Out*>(source)[e];
    }
}

// `smem` is free of operands: every warp of the CTA has finished its wgmma.
__device__ __forceinline__ void store_staged(const Accumulator& acc, const Epilogue& epilogue, char* smem, TileCoord origin,
                                             int warp) {
#pragma unroll
    for (int atom = 0; atom < cfg::atoms; ++atom)
        stage_rows(acc, atom, epilogue, smem_address(smem), origin, first_row(warp, atom));
    __syncwarp();
#pragma unroll
    for (int atom = 0; atom < cfg::atoms; ++atom) copy_rows(epilogue, smem, origin, first_row(warp, atom));
}
