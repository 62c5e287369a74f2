// mma.sync 16 x 8 x (32 bytes of k), row-major A times column-major B; sm_80+, e4m3 and e5m2 sm_89+. A: a[0], a[1] hold the
// first 16 bytes of k of rows g, g + 8, and a[2], a[3] the second; B: b[0] the first, b[1] the second. Only double differs:
// a[0..1] is row g, a[2..3] row g + 8, b[0..1] column g. 16-bit types also have m16n8k8 (k8). D = A * B + C in place. Of sign1
// the tensor cores count the products that are -1, popc(a ^ b), so that the product over k is k - 2 * D. Accumulators are
// float[4], int[4], double[4] or, for f16, unsigned[2] (two packed halves each).
#pragma once
#include "common/ptx/convert.cuh"

template <class T> struct Mma {
    static_assert(sizeof(T) == 0, "mma_sync multiplies f16, bf16, tf32, 8-, 4- and 1-bit types and double; float "
                                  "is not tf32: a problem asks for that by name");
};

#define TILEWRIGHT_MMA_F32(TYPE, NAME)                                                                             \
    template <> struct Mma<TYPE> {                                                                                 \
        static __device__ __forceinline__ void full(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
            asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 "                            \
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                         \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
        }                                                                                                          \
        static __device__ __forceinline__ void k8(float (&c)[4], unsigned a0, unsigned a1, unsigned b) {           \
            asm("mma.sync.aligned.m16n8k8.row.col.f32." NAME "." NAME ".f32 "                             \
                         "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                                     \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                          \
                         : "r"(a0), "r"(a1), "r"(b));                                                              \
        }                                                                                                          \
    };

TILEWRIGHT_MMA_F32(f16, "f16")
TILEWRIGHT_MMA_F32(bf16, "bf16")
#undef TILEWRIGHT_MMA_F32

#define TILEWRIGHT_MMA(TYPE, ACC, REGISTER, SHAPE, NAMES)                                                          \
    template <> struct Mma<TYPE> {                                                                                 \
        static __device__ __forceinline__ void full(ACC (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  \
            asm("mma.sync.aligned." SHAPE ".row.col." NAMES                                               \
                         " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                        \
                         : "+" REGISTER(c[0]), "+" REGISTER(c[1]), "+" REGISTER(c[2]), "+" REGISTER(c[3])          \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                      \
        }                                                                                                          \
    };

TILEWRIGHT_MMA(tf32, float, "f", "m16n8k8", "f32.tf32.tf32.f32")
TILEWRIGHT_MMA(e4m3, float, "f", "m16n8k32", "f32.e4m3.e4m3.f32")
TILEWRIGHT_MMA(e5m2, float, "f", "m16n8k32", "f32.e5m2.e5m2.f32")
TILEWRIGHT_MMA(s8, int, "r", "m16n8k32", "s32.s8.s8.s32")
TILEWRIGHT_MMA(u8, int, "r", "m16n8k32", "s32.u8.u8.s32")
TILEWRIGHT_MMA(s4, int, "r", "m16n8k64", "s32.s4.s4.s32")
TILEWRIGHT_MMA(u4, int, "r", "m16n8k64", "s32.u4.u4.s32")
TILEWRIGHT_MMA(u1, int, "r", "m16n8k256", "s32.b1.b1.s32.and.popc")
TILEWRIGHT_MMA(sign1, int, "r", "m16n8k256", "s32.b1.b1.s32.xor.popc")
#undef TILEWRIGHT_MMA

// m16n8k4 came with sm_90; before it, two m8n8k4 with the same fragments.
template <> struct Mma<double> {
    static __device__ __forceinline__ void full(double (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        const double top = __hiloint2double(a[1], a[0]), bottom = __hiloint2double(a[3], a[2]);
        const double right = __hiloint2double(b[1], b[0]);
#if __CUDA_ARCH__ >= 900
        asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                     : "d"(top), "d"(bottom), "d"(right));
#else
        m8n8k4(c[0], c[1], top, right);
        m8n8k4(c[2], c[3], bottom, right);
#endif
    }

private:
    static __device__ __forceinline__ void m8n8k4(double& c0, double& c1, double a, double b) {
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(c0), "+d"(c1)
                     : "d"(a), "d"(b));
    }
};

// f16 accumulators take half the registers and, on parts that are capped for f32, twice the rate.
__device__ __forceinline__ void mma_f16_k16(unsigned (&c)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void mma_f16_k8(unsigned (&c)[2], unsigned a0, unsigned a1, unsigned b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3}, {%4}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a0), "r"(a1), "r"(b));
}
