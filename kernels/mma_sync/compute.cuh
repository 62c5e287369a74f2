// From shared memory to accumulators: the fragments of one k step of a warp tile, and their products.
// A k step is 32 bytes of every row. With g = lane / 4 and t = lane % 4, a register holds bytes 4t .. 4t + 3 of row (A) or
// column (B) g of a 16-byte half step: two 16-bit, four 8-bit, eight 4-bit elements, 32 bits or one tf32. Of double a lane
// holds bytes 8t .. 8t + 7 of the whole step. Value (i, j, e) of a lane's accumulators is element
// (16 i + g + 8 (e / 2), 8 j + 2 t + e % 2) of the warp tile.
#pragma once
#include "common/ptx/ldmatrix.cuh"
#include "common/ptx/load_store.cuh"
#include "common/ptx/mma.cuh"
#include "mma_sync/config.cuh"

struct Fragments {
    unsigned a[cfg::mma_tiles_m][4];
    unsigned b[cfg::mma_tiles_n][2];
};

template <int EXTENT, bool K_MAJOR>
using OperandTile = SmemTile<K_MAJOR ? EXTENT : cfg::tile_k, bytes_of<In>(K_MAJOR ? cfg::tile_k : EXTENT), cfg::smem_layout>;
using TileA = OperandTile<cfg::tile_m, !cfg::a_transposed>;
using TileB = OperandTile<cfg::tile_n, cfg::b_transposed>;

__device__ __forceinline__ unsigned load_word(const char* smem) { return *reinterpret_cast<const unsigned*>(smem); }

__device__ __forceinline__ void load_double(unsigned& low, unsigned& high, const char* smem) {
    const uint2 words = *reinterpret_cast<const uint2*>(smem);
    low = words.x, high = words.y;
}

// Element (k, i) of an operand stored K x M or K x N.
template <class Tile> __device__ __forceinline__ const char* element(const char* smem, int k, int i) {
    return smem + Tile::chunk(k, i * cfg::size / 16) + i * cfg::size % 16;
}

// The word that this lane holds of rows (A) or columns (B) first .. first + 7 and 16-byte half `half` of k step `step`, by
// direct loads.
template <class Tile, bool K_MAJOR>
__device__ __forceinline__ unsigned load_half(const char* smem, int first, int step, int half) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (K_MAJOR) {
        return load_word(smem + Tile::chunk_from(first, g, step * 2 + half) + t * 4);
    } else if constexpr (cfg::size == 4) {
        return load_word(element<Tile>(smem, step * cfg::step_k + half * 4 + t, first + g));
    } else {
        const int k = step * 16 + half * 8 + t * 2;
        const unsigned low = *reinterpret_cast<const unsigned short*>(element<Tile>(smem, k, first + g));
        const unsigned high = *reinterpret_cast<const unsigned short*>(element<Tile>(smem, k + 1, first + g));
        return low | high << 16;
    }
}

// The double that this lane holds of the same rows or columns, over the whole step.
template <class Tile, bool K_MAJOR>
__device__ __forceinline__ void load_step_double(unsigned& low, unsigned& high, const char* smem, int first, int step) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (K_MAJOR)
        load_double(low, high, smem + Tile::chunk_from(first, g, step * 2 + t / 2) + t % 2 * 8);
    else
        load_double(low, high, element<Tile>(smem, step * cfg::step_k + t, first + g));
}

// Chunk `j` of the warp's COUNT chunks of a row, counted from `first`, a multiple of COUNT. If COUNT is a power of two, the two
// share no bits and their sum is an XOR, which folds into the XOR of the swizzle.
template <int COUNT> __device__ __forceinline__ int warp_chunk(int first, int j) {
    return (COUNT & (COUNT - 1)) == 0 ? first ^ j : first + j;
}

// Loads mma tile i of the warp's rows, which start at warp_row, and k step `step` of A. By ldmatrix, register j takes the
// 8 x 8 matrix that lanes 8j .. 8j + 7 address: rows j % 2 * 8 and up, half j / 2 of the step.
__device__ __forceinline__ void load_a(unsigned (&r)[4], const char* smem, int warp_row, int i, int step) {
    const int lane = threadIdx.x % 32, row0 = warp_row + i * 16;
    if constexpr (cfg::ldmatrix_a && cfg::a_transposed) {
        const int chunk = warp_chunk<cfg::mma_tiles_m * 2>(warp_row / 8, i * 2 ^ lane / 8 % 2);
        ldmatrix_x4_trans(r, smem_address(smem + TileA::chunk_from(step * 16, lane / 16 * 8 + lane % 8, chunk)));
    } else if constexpr (cfg::ldmatrix_a) {
        ldmatrix_x4(r, smem_address(smem + TileA::chunk_from(row0, lane % 16, step * 2 + lane / 16)));
    } else if constexpr (cfg::size == 8) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            load_step_double<TileA, !cfg::a_transposed>(r[2 * h], r[2 * h + 1], smem, row0 + h * 8, step);
    } else {
#pragma unroll
        for (int h = 0; h < 4; ++h) r[h] = load_half<TileA, !cfg::a_transposed>(smem, row0 + h % 2 * 8, step, h / 2);
    }
}

// Loads columns col0 .. col0 + 7 and one k step of B by direct loads.
__device__ __forceinline__ void load_b_direct(unsigned (&r)[2], const char* smem, int col0, int step) {
    if constexpr (cfg::size == 8) {
        load_step_double<TileB, cfg::b_transposed>(r[0], r[1], smem, col0, step);
    } else {
#pragma unroll
        for (int h = 0; h < 2; ++h) r[h] = load_half<TileB, cfg::b_transposed>(smem, col0, step, h);
    }
}

// The address that this lane gives to ldmatrix for column tile j and, for x4, j + 1. Lanes 0-7 and 8-15 address the two
// k halves of tile j, lanes 16-31 those of tile j + 1.
template <bool PAIR> __device__ __forceinline__ unsigned address_b(const char* smem, int warp_col, int j, int step) {
    // NOTE: x2 uses the addresses of lanes 0 .. 15 only, but those of all lanes must be in range.
    const int lane = threadIdx.x % (PAIR ? 32 : 16);
    const int half = lane / 8 % 2, next = lane / 16;
    if constexpr (cfg::b_transposed)
        return smem_address(smem + TileB::chunk_from(warp_col + j * 8, next * 8 + lane % 8, step * 2 + half));
    else
        return smem_address(smem + TileB::chunk_from(step * 16, half * 8 + lane % 8, warp_chunk<cfg::mma_tiles_n>(warp_col / 8, j ^ next)));
}

__device__ __forceinline__ void load_b(unsigned (&r)[cfg::mma_tiles_n][2], const char* smem, int warp_col, int step) {
#pragma unroll
    for (int j = 0; j < cfg::mma_tiles_n; j += 2) {
        const bool pair = j + 1 < cfg::mma_tiles_n;
        if constexpr (!cfg::ldmatrix_b) {
            load_b_direct(r[j], smem, warp_col + j * 8, step);
            if (pair) load_b_direct(r[j + 1], smem, warp_col + j * 8 + 8, step);
        } else if (pair) {
            unsigned four[4];
            const unsigned address = address_b<true>(smem, warp_col, j, step);
            cfg::b_transposed ? ldmatrix_x4(four, address) : ldmatrix_x4_trans(four, address);
            r[j][0] = four[0], r[j][1] = four[1], r[j + 1][0] = four[2], r[j + 1][1] = four[3];
        } else {
            const unsigned address = address_b<false>(smem, warp_col, j, step);
            cfg::b_transposed ? ldmatrix_x2(r[j], address) : ldmatrix_x2_trans(r[j], address);
        }
    }
}

__device__ __forceinline__ void load_fragments(Fragments& f, const char* smem_a, const char* smem_b, int row0, int col0,
                                               int step) {
#pragma unroll
    for (int i = 0; i < cfg::mma_tiles_m; ++i) load_a(f.a[i], smem_a, row0, i, step);
    load_b(f.b, smem_b, col0, step);
}

constexpr int accumulator_values = cfg::mma_tiles_m * cfg::mma_tiles_n * 4;

template <bool F16> struct Accumulator {
    ElementAccumulator value[cfg::mma_tiles_m][cfg::mma_tiles_n][4];

    __device__ __forceinline__ void multiply(int i, int j, const Fragments& f) {
        if constexpr (cfg::accumulate_outside) {
            ElementAccumulator product[4] = {0, 0, 0, 0};
            step<Mma<In>>(product, f.a[i], f.b[j]);
#pragma unroll
            for (int e = 0; e < 4; ++e) value[i][j][e] += product[e];
        } else {
            step<Mma<In>>(value[i][j], f.a[i], f.b[j]);
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < accumulator_values; ++i) (&value[0][0][0])[i] = 0;
    }
    __device__ __forceinline__ void read(ElementAccumulator (&out)[accumulator_values]) const {
#pragma unroll
        for (int i = 0; i < accumulator_values; ++i) out[i] = (&value[0][0][0])[i];
    }

private:
    template <class M>
    static __device__ __forceinline__ void step(ElementAccumulator (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        if constexpr (cfg::mma_k == 16) {
            M::full(c, a, b);
        } else {
            M::k8(c, a[0], a[1], b[0]);
            M::k8(c, a[2], a[3], b[1]);
        }
    }
};

template <> struct Accumulator<true> {
    unsigned value[cfg::mma_tiles_m][cfg::mma_tiles_n][2];

    __device__ __forceinline__ void multiply(int i, int j, const Fragments& f) {
        if constexpr (cfg::mma_k == 16) {
            mma_f16_k16(value[i][j], f.a[i], f.b[j]);
        } else {
            mma_f16_k8(value[i][j], f.a[i][0], f.a[i][1], f.b[j][0]);
            mma_f16_k8(value[i][j], f.a[i][2], f.a[i][3], f.b[j][1]);
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < accumulator_values / 2; ++i) (&value[0][0][0])[i] = 0;
    }
    __device__ __forceinline__ void read(ElementAccumulator (&out)[accumulator_values]) const {
#pragma unroll
        for (int i = 0; i < accumulator_values / 2; ++i) {
            const unsigned packed = (&value[0][0][0])[i];
            out[2 * i] = to_accumulator(f16{static_cast<unsigned short>(packed)});
            out[2 * i + 1] = to_accumulator(f16{static_cast<unsigned short>(packed >> 16)});
        }
    }
};

// Multiplies one k step of the warp tile. SNAKE reverses every other row of mma tiles, so that fragments are reused.
__device__ __forceinline__ void mma_step(Accumulator<cfg::accumulate_f16>& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < cfg::mma_tiles_m; ++i) {
#pragma unroll
        for (int step = 0; step < cfg::mma_tiles_n; ++step) {
            const int j = cfg::snake && i % 2 ? cfg::mma_tiles_n - 1 - step : step;
            acc.multiply(i, j, f);
        }
    }
}
