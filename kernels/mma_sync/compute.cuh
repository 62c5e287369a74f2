// From shared memory to accumulators: the fragments of one k step of a warp tile, and their products.
// A k step is 32 bytes of every row. With g = lane / 4 and t = lane % 4, a register holds bytes 4t .. 4t + 3 of row (A) or
// column (B) g of a 16-byte half step: two 16-bit, four 8-bit, eight 4-bit elements, 32 bits or one tf32. Of double a lane
// holds bytes 8t .. 8t + 7 of the whole step. Value (i, j, e) of a lane's accumulators is element
// (16 i + g + 8 (e / 2), 8 j + 2 t + e % 2) of the warp tile. Of A of tf32 with rows of k, rows g and g + 8 are rows
// 2 g and 2 g + 1 of 16 instead, so that a lane loads both at a time.
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
using OperandTile = SmemTile<K_MAJOR ? EXTENT : cfg::tile_k, bytes_of<In>(K_MAJOR ? cfg::tile_k : EXTENT), cfg::smem_layout,
                             cfg::shift<K_MAJOR>>;
using TileA = OperandTile<cfg::tile_m, !cfg::a_transposed>;
using TileB = OperandTile<cfg::tile_n, cfg::b_transposed>;

extern __shared__ __align__(128) char smem[];

// Chunk `j` of the warp's COUNT chunks of a row, counted from `first`, a multiple of COUNT. If COUNT is a power of two, the two
// share no bits and their sum is an XOR, which folds into the XOR of the swizzle.
template <int COUNT> __device__ __forceinline__ int warp_chunk(int first, int j) {
    return (COUNT & (COUNT - 1)) == 0 ? first ^ j : first + j;
}

// The addresses that a lane gives to ldmatrix for groups of 16 of the EXTENT rows (A) or columns (B) of its warp tile: `minor`
// is the lane's row or column of a group, `half` its 16-byte half of a k step; where k runs down the rows, the lane's row of a
// step and its chunk of a group. NOTE: a swizzle varies along a row alone, so each address of a row is kept in a register, and
// what is added for other rows is a constant, which folds into the instruction.
template <class Tile, bool K_MAJOR, int EXTENT> struct LaneAddresses {
    static constexpr int kept = K_MAJOR ? cfg::k_steps : (EXTENT + 15) / 16;
    unsigned address[kept];

    __device__ __forceinline__ LaneAddresses(int warp_first, int first_step, int minor, int half) {
#pragma unroll
        for (int i = 0; i < kept; ++i)
            address[i] = smem_address(smem) + (K_MAJOR ? Tile::chunk(warp_first + minor, (first_step + i) * 2 + half)
                                                       : Tile::chunk(first_step * 16 + minor, group_chunk(warp_first, i, half)));
    }
    __device__ __forceinline__ unsigned at(int group, int step) const {
        return K_MAJOR ? address[step] + group * Tile::chunk(16, 0) : address[group] + step * Tile::chunk(16, 0);
    }

private:
    static __device__ __forceinline__ int group_chunk(int warp_first, int group, int half) {
        const bool both = group * 16 + 8 < EXTENT;
        return warp_chunk<EXTENT / 8>(warp_first / 8, both ? group * 2 ^ half : group * 2);
    }
};

__device__ __forceinline__ unsigned load_word(const char* from) { return *reinterpret_cast<const unsigned*>(from); }

__device__ __forceinline__ void load_words(unsigned& first, unsigned& second, const char* from) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    first = words.x, second = words.y;
}

// Element (k, i) of an operand stored K x M or K x N.
template <class Tile> __device__ __forceinline__ const char* element(const char* tile, int k, int i) {
    return tile + Tile::chunk(k, i * cfg::size / 16) + i * cfg::size % 16;
}

// The word that this lane holds of rows (A) or columns (B) first .. first + 7 and 16-byte half `half` of k step `step`, by
// direct loads.
template <class Tile, bool K_MAJOR>
__device__ __forceinline__ unsigned load_half(const char* tile, int first, int step, int half) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (K_MAJOR) {
        return load_word(tile + Tile::chunk_from(first, g, step * 2 + half) + t * 4);
    } else {
        const int k = step * 16 + half * 8 + t * 2;
        const unsigned low = *reinterpret_cast<const unsigned short*>(element<Tile>(tile, k, first + g));
        const unsigned high = *reinterpret_cast<const unsigned short*>(element<Tile>(tile, k + 1, first + g));
        return low | high << 16;
    }
}

// Of tf32 with rows of k: the offset of a lane's WORDS neighbours, of 8 * WORDS rows (A) or columns (B) from `first` of the warp
// tile. NOTE: in the XOR layout, beyond 32 columns or 4 rows the swizzle repeats, and what is added is a constant, which folds
// into the instruction.
template <class Tile, int WORDS> struct LaneWords {
    static constexpr int each = 8 * WORDS;
    int warp_first, first_step;
    int kept[32 / each];

    __device__ __forceinline__ LaneWords(int warp_first_, int first_step_) : warp_first(warp_first_), first_step(first_step_) {
#pragma unroll
        for (int i = 0; i < 32 / each; ++i) kept[i] = offset(i * each, 0, 0);
    }
    __device__ __forceinline__ int at(int first, int step, int half) const {
        if constexpr (cfg::words_keep)
            return kept[first / each % (32 / each)] + first / 32 * 128 + half * Tile::chunk(4, 0) + step * Tile::chunk(8, 0);
        return offset(first, step, half);
    }

private:
    __device__ __forceinline__ int offset(int first, int step, int half) const {
        const int lane = threadIdx.x % 32, element = warp_first + first + lane / 4 * WORDS;
        return Tile::chunk((first_step + step) * 8 + half * 4 + lane % 4, element / 4) + element % 4 * 4;
    }
};
template <class Tile> struct LaneWords<Tile, 0> {
    __device__ __forceinline__ LaneWords(int, int) {}
    __device__ __forceinline__ int at(int, int, int) const { return 0; }
};

// The double that this lane holds of the same rows or columns, over the whole step.
template <class Tile, bool K_MAJOR>
__device__ __forceinline__ void load_step_double(unsigned& low, unsigned& high, const char* tile, int first, int step) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if constexpr (K_MAJOR)
        load_words(low, high, tile + Tile::chunk_from(first, g, step * 2 + t / 2) + t % 2 * 8);
    else
        load_words(low, high, element<Tile>(tile, step * cfg::step_k + t, first + g));
}

// Loads the fragments of a warp tile, piece by piece: piece 0 is mma tile 0 of the rows, then come the pairs of mma tiles of the
// columns, then the rest of the rows, in the order in which the products need them.
struct FragmentLoader {
    static constexpr int groups_n = (cfg::mma_tiles_n + 1) / 2;
    static constexpr int pieces = cfg::mma_tiles_m + groups_n;

    int warp_row, warp_col, first_step;
    // By ldmatrix, register j takes the 8 x 8 matrix that lanes 8j .. 8j + 7 address. Of A: rows j % 2 * 8 and up, half j / 2 of
    // the step. Of B: half j % 2 of columns j / 2 * 8 and up. .trans turns matrices of k x 8 into 8 x k.
    LaneAddresses<TileA, !cfg::a_transposed, cfg::warp_m> a;
    LaneAddresses<TileB, cfg::b_transposed, cfg::warp_n> b;
    static constexpr bool words_b = cfg::size == 4 && !cfg::b_transposed;
    LaneWords<TileA, cfg::pairs_m ? 2 : 0> a_words;
    LaneWords<TileB, words_b ? 1 : 0> b_words;

    __device__ __forceinline__ FragmentLoader(int warp_row_, int warp_col_, int first_step_)
        : warp_row(warp_row_), warp_col(warp_col_), first_step(first_step_),
          a(warp_row, first_step, cfg::a_transposed ? lane() / 16 * 8 + lane() % 8 : lane() % 16,
            cfg::a_transposed ? lane() / 8 % 2 : lane() / 16),
          b(warp_col, first_step, cfg::b_transposed ? lane() / 16 * 8 + lane() % 8 : lane() % 16,
            cfg::b_transposed ? lane() / 8 % 2 : lane() / 16),
          a_words(warp_row, first_step), b_words(warp_col, first_step) {}

    __device__ __forceinline__ void load(Fragments& f, int stage, int step) const {
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) load_piece(f, stage, step, piece);
    }
    __device__ __forceinline__ void load_piece(Fragments& f, int stage, int step, int piece) const {
        if (piece == 0)
            load_a(f.a[0], stage, 0, step);
        else if (piece <= groups_n)
            load_b(f.b, stage, piece - 1, step);
        else
            load_a(f.a[piece - groups_n], stage, piece - groups_n, step);
    }

    // Loads mma tile i of the warp's rows from the stage at byte `stage` of shared memory.
    __device__ __forceinline__ void load_a(unsigned (&r)[4], int stage, int i, int step) const {
        const char* tile = smem + stage;
        const int row = warp_row + i * 16;
        if constexpr (cfg::ldmatrix_a) {
            cfg::a_transposed ? ldmatrix_x4_trans(r, a.at(i, step) + stage) : ldmatrix_x4(r, a.at(i, step) + stage);
        } else if constexpr (cfg::size == 8) {
#pragma unroll
            for (int h = 0; h < 2; ++h)
                load_step_double<TileA, !cfg::a_transposed>(r[2 * h], r[2 * h + 1], tile, row + h * 8, first_step + step);
        } else if constexpr (cfg::pairs_m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) load_words(r[2 * h], r[2 * h + 1], tile + a_words.at(i * 16, step, h));
        } else {
#pragma unroll
            for (int h = 0; h < 4; ++h)
                r[h] = load_half<TileA, !cfg::a_transposed>(tile, row + h % 2 * 8, first_step + step, h / 2);
        }
    }

    // Loads mma tiles 2 * pair and, unless it is beyond the last, 2 * pair + 1 of the warp's columns.
    __device__ __forceinline__ void load_b(unsigned (&r)[cfg::mma_tiles_n][2], int stage, int pair, int step) const {
        const int j = pair * 2;
        const bool both = j + 1 < cfg::mma_tiles_n;
        if constexpr (cfg::b_by_x2) {
            load_b_x2(r[j], stage, j, step);
            if (both) load_b_x2(r[j + 1], stage, j + 1, step);
        } else if constexpr (!cfg::ldmatrix_b) {
            load_b_direct(r[j], stage, j, step);
            if (both) load_b_direct(r[j + 1], stage, j + 1, step);
        } else {
            const unsigned address = b.at(pair, step) + stage + TileA::bytes;
            if (both) {
                unsigned four[4];
                cfg::b_transposed ? ldmatrix_x4(four, address) : ldmatrix_x4_trans(four, address);
                r[j][0] = four[0], r[j][1] = four[1], r[j + 1][0] = four[2], r[j + 1][1] = four[3];
            } else if constexpr (cfg::b_transposed) {
                load_b_x2(r[j], stage, j, step);
            } else {
                ldmatrix_x2_trans(r[j], address);
            }
        }
    }

    // Loads mma tile j of the warp's columns of B stored N x K. NOTE: an x2 takes the addresses of lanes 0 .. 15 only, but those of
    // all lanes must be in range.
    __device__ __forceinline__ void load_b_x2(unsigned (&r)[2], int stage, int j, int step) const {
        const int beyond = lane() / 16 * TileB::chunk(8, 0);
        ldmatrix_x2(r, b.at(j / 2, step) + stage + TileA::bytes + (j % 2 ? TileB::chunk(8, 0) : 0) - beyond);
    }

private:
    static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }

    __device__ __forceinline__ void load_b_direct(unsigned (&r)[2], int stage, int j, int step) const {
        const char* tile = smem + stage + TileA::bytes;
        const int column = warp_col + j * 8;
        if constexpr (cfg::size == 8) {
            load_step_double<TileB, cfg::b_transposed>(r[0], r[1], tile, column, first_step + step);
        } else {
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if constexpr (words_b)
                    r[h] = load_word(tile + b_words.at(j * 8, step, h));
                else
                    r[h] = load_half<TileB, cfg::b_transposed>(tile, column, first_step + step, h);
        }
    }
};

constexpr int accumulator_values = cfg::mma_tiles_m * cfg::mma_tiles_n * 4;

// Where this lane's value i, an even one, lies in the warp tile: in row `base` + `row`, where base is a multiple of 8.
struct ValuePlace { int base, row, column; };
__device__ __forceinline__ ValuePlace value_place(int i) {
    const int lane = threadIdx.x % 32, half = i / 2 % 2, first_row = i / 4 / cfg::mma_tiles_n * 16;
    const int column = i / 4 % cfg::mma_tiles_n * 8 + lane % 4 * 2;
    if constexpr (cfg::pairs_m) return {first_row, lane / 4 * 2 + half, column};
    return {first_row + half * 8, lane / 4, column};
}

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

// Multiplies row i of the warp's mma tiles. SNAKE reverses every other row, so that fragments are reused.
__device__ __forceinline__ void mma_row(Accumulator<cfg::accumulate_f16>& acc, const Fragments& f, int i) {
#pragma unroll
    for (int step = 0; step < cfg::mma_tiles_n; ++step) acc.multiply(i, cfg::snake && i % 2 ? cfg::mma_tiles_n - 1 - step : step, f);
}
