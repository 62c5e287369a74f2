// The sums of a warp of family skinny: wide x thin, by tensor cores or by FMA units.
//   mma   weights along k are the 8 columns and thin rows the 16 rows; across k the other way round
//   fma   a lane multiplies its chunks by every thin row; the four lanes of a row add up at the end
// put() writes the warp's sums to shared memory as [thin][wide].
#pragma once
#include "ptx/mma.cuh"
#include "tile/skinny_operands.cuh"
#include "tile/thin_finish.cuh"

template <class T, bool MMA> struct Sums {
    static constexpr int wide = cfg::chunks / (cfg::k_across ? 1 : 4) * (cfg::k_across ? 1 : cfg::lane_elements);
    Real value[wide][cfg::tile_thin] = {};

    __device__ __forceinline__ void multiply(const Chunk (&w)[cfg::chunks], const Thin (&x)[cfg::thin_rows]) {
#pragma unroll
        for (int e = 0; e < cfg::thin_elements; ++e) {
            Real thin[cfg::tile_thin];
#pragma unroll
            for (int r = 0; r < cfg::tile_thin; ++r) thin[r] = element(x[r].word, e);
#pragma unroll
            for (int i = 0; i < wide; ++i) {
                const Real weight = cfg::k_across ? element(w[i].word, e)
                                                  : element(w[i / cfg::lane_elements * 4 + e].word, i % cfg::lane_elements);
#pragma unroll
                for (int r = 0; r < cfg::tile_thin; ++r) value[i][r] += weight * thin[r];
            }
        }
    }
    __device__ __forceinline__ void put(Real* sums) const {
        const int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < wide; ++i)
#pragma unroll
            for (int r = 0; r < cfg::tile_thin; ++r) {
                Real sum = value[i][r];
                sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
                sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
                const int at = cfg::k_across
                                   ? i * 8 + g
                                   : i / cfg::lane_elements * cfg::warp_tile + g * cfg::lane_elements + i % cfg::lane_elements;
                if (threadIdx.x % 4 == 0) sums[r * sums_stride + at] = sum;
            }
    }
};

template <class T> struct Sums<T, true> {
    // mma tiles along the wide axis: of 8 where rows run along k, whose registers are then operand B as they were
    // loaded; of 16 across k, where bytes are permuted into operand A.
    static constexpr int mma_tiles = cfg::warp_tiles * (cfg::k_across ? 2 : 4);
    static constexpr int columns = cfg::k_across ? 1 : cfg::thin_tiles;
    Real value[mma_tiles][columns][4] = {};

    __device__ __forceinline__ void multiply(const Chunk (&w)[cfg::chunks], const Thin (&x)[cfg::thin_rows]) {
        if constexpr (cfg::k_across)
            multiply_along(w, x[0].word, x[cfg::thin_rows - 1].word);
        else
            multiply_across(w, x);
    }
    __device__ __forceinline__ void put(Real* sums) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < mma_tiles; ++i)
#pragma unroll
            for (int n = 0; n < columns; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int thin = cfg::k_across ? g + e / 2 * 8 : n * 8 + 2 * t + e % 2;
                    const int at = cfg::k_across ? i * 8 + 2 * t + e % 2
                                                 : i / 4 * cfg::warp_tile + g * cfg::lane_elements + i % 4 * 2 + e / 2;
                    if (thin < cfg::tile_thin) sums[thin * sums_stride + at] = value[i][n][e];
                }
    }

private:
    // NOTE: up to 8 thin rows take both halves of the 16 rows of operand A; the second half is never stored.
    __device__ __forceinline__ void multiply_along(const Chunk (&w)[cfg::chunks], const unsigned* top, const unsigned* bottom) {
#pragma unroll
        for (int half = 0; half < 4; half += 2) {
            const unsigned a[4] = {top[half], bottom[half], top[half + 1], bottom[half + 1]};
#pragma unroll
            for (int i = 0; i < mma_tiles; ++i) {
                const unsigned b[2] = {w[i].word[half], w[i].word[half + 1]};
                Mma<T>::full(value[i][0], a, b);
            }
        }
    }
    // Columns 2j and 2j + 1 of a lane's chunk become rows g and g + 8; neighbours in k share a register.
    __device__ __forceinline__ void multiply_across(const Chunk (&w)[cfg::chunks], const Thin (&x)[cfg::thin_rows]) {
#pragma unroll
        for (int i = 0; i < mma_tiles; ++i) {
            const Chunk* k = w + i / 4 * 4;
            const int j = i % 4;
            const unsigned a[4] = {
                __byte_perm(k[0].word[j], k[1].word[j], 0x5410), __byte_perm(k[0].word[j], k[1].word[j], 0x7632),
                __byte_perm(k[2].word[j], k[3].word[j], 0x5410), __byte_perm(k[2].word[j], k[3].word[j], 0x7632)};
#pragma unroll
            for (int n = 0; n < columns; ++n) {
                const unsigned b[2] = {x[n].word[0], x[n].word[1]};
                Mma<T>::full(value[i][n], a, b);
            }
        }
    }
};
