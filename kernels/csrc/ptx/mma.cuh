// mma.sync m16n8k8 and m16n8k16, row-major A times column-major B, f16 or bf16 inputs (sm_80+).
// A: a[0], a[1] hold k 0..7 of rows g, g + 8 and a[2], a[3] hold k 8..15; B: b[0] k 0..7, b[1] k 8..15.
// Accumulators: f32 as float[4], f16 as unsigned[2] (two packed halves); D = A * B + C in place.
#pragma once
#include "ptx/convert.cuh"

template <class T> struct Mma;

#define TILEWRIGHT_MMA_F32(TYPE, NAME)                                                                             \
    template <> struct Mma<TYPE> {                                                                                 \
        static __device__ __forceinline__ void k16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                            \
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                         \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
        }                                                                                                          \
        static __device__ __forceinline__ void k8(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {           \
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." NAME "." NAME ".f32 "                             \
                         "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                                     \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
                         : "r"(a0), "r"(a1), "r"(b));                                                              \
        }                                                                                                          \
    };

TILEWRIGHT_MMA_F32(f16, "f16")
TILEWRIGHT_MMA_F32(bf16, "bf16")
#undef TILEWRIGHT_MMA_F32

// f16 accumulators take half the registers and, on parts that are capped for f32, twice the rate.
__device__ __forceinline__ void mma_f16_k16(unsigned (&c)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_f16_k8(unsigned (&c)[2], unsigned a0, unsigned a1, unsigned b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a0), "r"(a1), "r"(b));
}
