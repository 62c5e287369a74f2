// A warp's accumulators, weight rows x activation rows, by tensor cores or by FMA units.
//   mma   K-major weights are the 8 columns and activations the 16 rows; else the other way round
//   fma   a lane multiplies its vectors by every activation row; the four lanes of a row are added up at the end
// store() writes the warp's partials to shared memory as [activation row][weight row].
#pragma once
#include "gemv/load.cuh"
#include "gemv/epilogue.cuh"
#include "common/ptx/mma.cuh"

template <class T, bool MMA> struct Accumulator {
    static constexpr int rows = cfg::weights_k_major ? cfg::vectors : cfg::vector_elements;
    ElementAccumulator value[rows][cfg::activation_rows] = {};

    __device__ __forceinline__ void multiply(const Vector (&w)[cfg::vectors], const ActivationVector (&x)[cfg::lane_rows]) {
#pragma unroll
        for (int e = 0; e < cfg::activation_elements; ++e) {
            ElementAccumulator activation[cfg::activation_rows];
#pragma unroll
            for (int r = 0; r < cfg::activation_rows; ++r) activation[r] = element(x[r].word, e);
#pragma unroll
            for (int i = 0; i < rows; ++i) {
                const ElementAccumulator weight = cfg::weights_k_major ? element(w[i].word, e) : element(w[e].word, i);
#pragma unroll
                for (int r = 0; r < cfg::activation_rows; ++r) value[i][r] += weight * activation[r];
            }
        }
    }
    __device__ __forceinline__ void store(ElementAccumulator* partials) const {
        const int g = threadIdx.x % 32 / 4;
#pragma unroll
        for (int i = 0; i < rows; ++i)
#pragma unroll
            for (int r = 0; r < cfg::activation_rows; ++r) {
                ElementAccumulator sum = value[i][r];
                sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
                sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
                const int at = cfg::weights_k_major ? i * 8 + g : g * cfg::vector_elements + i;
                if (threadIdx.x % 4 == 0) partials[r * partial_stride + at] = sum;
            }
    }
};

template <class T> struct Accumulator<T, true> {
    // mma tiles along the weight rows: of 8 rows if K-major, whose registers are operand B as loaded; else of 16 rows,
    // whose bytes are permuted into operand A.
    static constexpr int mma_tiles = cfg::weights_k_major ? 2 : 4;
    static constexpr int columns = cfg::weights_k_major ? 1 : cfg::mma_columns;
    ElementAccumulator value[mma_tiles][columns][4] = {};

    __device__ __forceinline__ void multiply(const Vector (&w)[cfg::vectors], const ActivationVector (&x)[cfg::lane_rows]) {
        if constexpr (cfg::weights_k_major)
            multiply_k_major(w, x[0].word, x[cfg::lane_rows - 1].word);
        else
            multiply_mn_major(w, x);
    }
    __device__ __forceinline__ void store(ElementAccumulator* partials) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < mma_tiles; ++i)
#pragma unroll
            for (int n = 0; n < columns; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int activation = cfg::weights_k_major ? g + e / 2 * 8 : n * 8 + 2 * t + e % 2;
                    const int at = cfg::weights_k_major ? i * 8 + 2 * t + e % 2
                                                        : g * cfg::vector_elements + i * 2 + e / 2;
                    if (activation < cfg::activation_rows) partials[activation * partial_stride + at] = value[i][n][e];
                }
    }

private:
    // NOTE: up to 8 activation rows fill both halves of the 16 rows of operand A; the second half is never stored.
    __device__ __forceinline__ void multiply_k_major(const Vector (&w)[cfg::vectors], const unsigned* top,
                                                     const unsigned* bottom) {
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
    // Elements 2i and 2i + 1 of a lane's vector become rows g and g + 8; neighbours in k share a register.
    __device__ __forceinline__ void multiply_mn_major(const Vector (&w)[cfg::vectors],
                                                       const ActivationVector (&x)[cfg::lane_rows]) {
#pragma unroll
        for (int i = 0; i < mma_tiles; ++i) {
            const unsigned a[4] = {
                __byte_perm(w[0].word[i], w[1].word[i], 0x5410), __byte_perm(w[0].word[i], w[1].word[i], 0x7632),
                __byte_perm(w[2].word[i], w[3].word[i], 0x5410), __byte_perm(w[2].word[i], w[3].word[i], 0x7632)};
#pragma unroll
            for (int n = 0; n < columns; ++n) {
                const unsigned b[2] = {x[n].word[0], x[n].word[1]};
                Mma<T>::full(value[i][n], a, b);
            }
        }
    }
};
