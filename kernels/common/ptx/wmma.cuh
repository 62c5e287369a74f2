// wmma (sm_80+): 16 x 16 x 16 products of f16 or bf16 matrices in shared memory. Which elements a lane holds is unspecified, as
// with nvcuda::wmma; fragments are only loaded, multiplied and stored whole. STRIDE is the number of elements between rows
// (of a `col` matrix: columns), a multiple of 16 bytes; a matrix starts at a multiple of 32 bytes.
#pragma once
#include "common/ptx/convert.cuh"

template <class T> struct WmmaOperand; // A or B
template <> struct WmmaOperand<f16> { unsigned r[8]; };
template <> struct WmmaOperand<bf16> { unsigned r[4]; };
template <class T> struct WmmaAccumulator; // C and D
template <> struct WmmaAccumulator<float> { float r[8]; };
template <> struct WmmaAccumulator<f16> { unsigned r[4]; };

#define TILEWRIGHT_WMMA_LOAD(FUNCTION, MATRIX_LAYOUT)                                                              \
    template <int STRIDE> __device__ __forceinline__ void FUNCTION(WmmaOperand<f16>& x, unsigned smem) {           \
        static_assert(STRIDE % 8 == 0, "rows are whole 16-byte chunks");                                           \
        asm volatile("wmma.load." MATRIX_LAYOUT ".m16n16k16.shared.f16 "                                           \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"                                                 \
                     : "=r"(x.r[0]), "=r"(x.r[1]), "=r"(x.r[2]), "=r"(x.r[3]), "=r"(x.r[4]), "=r"(x.r[5]),         \
                       "=r"(x.r[6]), "=r"(x.r[7])                                                                  \
                     : "r"(smem), "n"(STRIDE)                                                                      \
                     : "memory");                                                                                  \
    }                                                                                                              \
    template <int STRIDE> __device__ __forceinline__ void FUNCTION(WmmaOperand<bf16>& x, unsigned smem) {          \
        static_assert(STRIDE % 8 == 0, "rows are whole 16-byte chunks");                                           \
        asm volatile("wmma.load." MATRIX_LAYOUT ".m16n16k16.shared.bf16 {%0, %1, %2, %3}, [%4], %5;"               \
                     : "=r"(x.r[0]), "=r"(x.r[1]), "=r"(x.r[2]), "=r"(x.r[3])                                      \
                     : "r"(smem), "n"(STRIDE)                                                                      \
                     : "memory");                                                                                  \
    }

TILEWRIGHT_WMMA_LOAD(wmma_load_a_row, "a.sync.aligned.row")
TILEWRIGHT_WMMA_LOAD(wmma_load_a_col, "a.sync.aligned.col")
TILEWRIGHT_WMMA_LOAD(wmma_load_b_row, "b.sync.aligned.row")
TILEWRIGHT_WMMA_LOAD(wmma_load_b_col, "b.sync.aligned.col")
#undef TILEWRIGHT_WMMA_LOAD

// C += A * B with A and B each by rows or columns, as they were loaded.
#define TILEWRIGHT_WMMA_MMA(FUNCTION, LAYOUTS)                                                                      \
    __device__ __forceinline__ void FUNCTION(WmmaAccumulator<float>& c, const WmmaOperand<f16>& a, const WmmaOperand<f16>& b) { \
        asm volatile("wmma.mma.sync.aligned." LAYOUTS ".m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "      \
                     "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "          \
                     "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                           \
                     : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3]), "+f"(c.r[4]), "+f"(c.r[5]),         \
                       "+f"(c.r[6]), "+f"(c.r[7])                                                                  \
                     : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(a.r[4]), "r"(a.r[5]), "r"(a.r[6]),  \
                       "r"(a.r[7]), "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]), "r"(b.r[4]), "r"(b.r[5]),  \
                       "r"(b.r[6]), "r"(b.r[7]));                                                                  \
    }                                                                                                              \
    __device__ __forceinline__ void FUNCTION(WmmaAccumulator<f16>& c, const WmmaOperand<f16>& a, const WmmaOperand<f16>& b) { \
        asm volatile("wmma.mma.sync.aligned." LAYOUTS ".m16n16k16.f16.f16 {%0, %1, %2, %3}, "                      \
                     "{%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15, %16, %17, %18, %19}, "              \
                     "{%0, %1, %2, %3};"                                                                           \
                     : "+r"(c.r[0]), "+r"(c.r[1]), "+r"(c.r[2]), "+r"(c.r[3])                                      \
                     : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(a.r[4]), "r"(a.r[5]), "r"(a.r[6]),  \
                       "r"(a.r[7]), "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]), "r"(b.r[4]), "r"(b.r[5]),  \
                       "r"(b.r[6]), "r"(b.r[7]));                                                                  \
    }                                                                                                              \
    __device__ __forceinline__ void FUNCTION(WmmaAccumulator<float>& c, const WmmaOperand<bf16>& a, const WmmaOperand<bf16>& b) { \
        asm volatile("wmma.mma.sync.aligned." LAYOUTS ".m16n16k16.f32.bf16.bf16.f32 "                              \
                     "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, {%12, %13, %14, %15}, "                \
                     "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                           \
                     : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3]), "+f"(c.r[4]), "+f"(c.r[5]),         \
                       "+f"(c.r[6]), "+f"(c.r[7])                                                                  \
                     : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]),  \
                       "r"(b.r[3]));                                                                               \
    }

TILEWRIGHT_WMMA_MMA(wmma_mma_row_row, "row.row")
TILEWRIGHT_WMMA_MMA(wmma_mma_row_col, "row.col")
TILEWRIGHT_WMMA_MMA(wmma_mma_col_row, "col.row")
TILEWRIGHT_WMMA_MMA(wmma_mma_col_col, "col.col")
#undef TILEWRIGHT_WMMA_MMA

template <int STRIDE> __device__ __forceinline__ void wmma_store(unsigned smem, const WmmaAccumulator<float>& x) {
    static_assert(STRIDE % 8 == 0, "rows are whole 32-byte groups");
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;" ::"r"(smem),
                 "f"(x.r[0]), "f"(x.r[1]), "f"(x.r[2]), "f"(x.r[3]), "f"(x.r[4]), "f"(x.r[5]), "f"(x.r[6]), "f"(x.r[7]),
                 "n"(STRIDE)
                 : "memory");
}
template <int STRIDE> __device__ __forceinline__ void wmma_store(unsigned smem, const WmmaAccumulator<f16>& x) {
    static_assert(STRIDE % 8 == 0, "rows are whole 16-byte chunks");
    asm volatile("wmma.store.d.sync.aligned.row.m16n16k16.shared.f16 [%0], {%1, %2, %3, %4}, %5;" ::"r"(smem), "r"(x.r[0]),
                 "r"(x.r[1]), "r"(x.r[2]), "r"(x.r[3]), "n"(STRIDE)
                 : "memory");
}
