// wgmma m64nNkK (sm_90a): a warpgroup multiplies tiles in shared memory, asynchronously; N is a multiple of 8 up to 256, K is 32
// bytes. D = A * B + D in registers: pair p of a thread (two f32 or s32, or one register of two f16) is elements
// (16 w + lane / 4 + 8 (p % 2), 8 (p / 2) + 2 (lane % 4) + {0, 1}) of the 64 x N tile, w the warp of the warpgroup.
#pragma once
#include "common/ptx/convert.cuh"

// Before the first wgmma and after any other access to its registers.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most PENDING of the warp's groups are still in flight.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving accesses of an accumulator across this call.
__device__ __forceinline__ void wgmma_fence_register(float& r) { asm volatile("" : "+f"(r)::"memory"); }
__device__ __forceinline__ void wgmma_fence_register(unsigned& r) { asm volatile("" : "+r"(r)::"memory"); }
__device__ __forceinline__ void wgmma_fence_register(int& r) { asm volatile("" : "+r"(r)::"memory"); }

// Start address, leading and stride offsets in units of 16 bytes; layout type 1 is the 128-byte swizzle.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned smem, unsigned leading, unsigned stride) {
    return (smem & 0x3FFFFu) >> 4 | static_cast<unsigned long long>(leading) << 16 |
           static_cast<unsigned long long>(stride) << 32 | 1ull << 62;
}

// Operand lists of wgmma: n = 10 q + r accumulator registers (r even, 2 .. 10) as text "%0, %1, ..." and as asm operands
// X(0), X(1), ... An asm statement spells out each register, and the preprocessor cannot count: a list is q full tens and the
// first r of another ten.

// clang-format off
// The first 2 .. 10 of the ten registers that start with digits q.
#define TW_TEXT_2(q) "%" #q "0, %" #q "1"
#define TW_TEXT_4(q) TW_TEXT_2(q) ", %" #q "2, %" #q "3"
#define TW_TEXT_6(q) TW_TEXT_4(q) ", %" #q "4, %" #q "5"
#define TW_TEXT_8(q) TW_TEXT_6(q) ", %" #q "6, %" #q "7"
#define TW_TEXT_10(q) TW_TEXT_8(q) ", %" #q "8, %" #q "9"
#define TW_LIST_2(X, q) X(10 * q), X(10 * q + 1)
#define TW_LIST_4(X, q) TW_LIST_2(X, q), X(10 * q + 2), X(10 * q + 3)
#define TW_LIST_6(X, q) TW_LIST_4(X, q), X(10 * q + 4), X(10 * q + 5)
#define TW_LIST_8(X, q) TW_LIST_6(X, q), X(10 * q + 6), X(10 * q + 7)
#define TW_LIST_10(X, q) TW_LIST_8(X, q), X(10 * q + 8), X(10 * q + 9)

// All registers below 10 q, each followed by a comma.
#define TW_TEXT_TENS_0
#define TW_TEXT_TENS_1 TW_TEXT_TENS_0 TW_TEXT_10(0) ", "
#define TW_TEXT_TENS_2 TW_TEXT_TENS_1 TW_TEXT_10(1) ", "
#define TW_TEXT_TENS_3 TW_TEXT_TENS_2 TW_TEXT_10(2) ", "
#define TW_TEXT_TENS_4 TW_TEXT_TENS_3 TW_TEXT_10(3) ", "
#define TW_TEXT_TENS_5 TW_TEXT_TENS_4 TW_TEXT_10(4) ", "
#define TW_TEXT_TENS_6 TW_TEXT_TENS_5 TW_TEXT_10(5) ", "
#define TW_TEXT_TENS_7 TW_TEXT_TENS_6 TW_TEXT_10(6) ", "
#define TW_TEXT_TENS_8 TW_TEXT_TENS_7 TW_TEXT_10(7) ", "
#define TW_TEXT_TENS_9 TW_TEXT_TENS_8 TW_TEXT_10(8) ", "
#define TW_TEXT_TENS_10 TW_TEXT_TENS_9 TW_TEXT_10(9) ", "
#define TW_TEXT_TENS_11 TW_TEXT_TENS_10 TW_TEXT_10(10) ", "
#define TW_TEXT_TENS_12 TW_TEXT_TENS_11 TW_TEXT_10(11) ", "
#define TW_LIST_TENS_0(X)
#define TW_LIST_TENS_1(X) TW_LIST_TENS_0(X) TW_LIST_10(X, 0),
#define TW_LIST_TENS_2(X) TW_LIST_TENS_1(X) TW_LIST_10(X, 1),
#define TW_LIST_TENS_3(X) TW_LIST_TENS_2(X) TW_LIST_10(X, 2),
#define TW_LIST_TENS_4(X) TW_LIST_TENS_3(X) TW_LIST_10(X, 3),
#define TW_LIST_TENS_5(X) TW_LIST_TENS_4(X) TW_LIST_10(X, 4),
#define TW_LIST_TENS_6(X) TW_LIST_TENS_5(X) TW_LIST_10(X, 5),
#define TW_LIST_TENS_7(X) TW_LIST_TENS_6(X) TW_LIST_10(X, 6),
#define TW_LIST_TENS_8(X) TW_LIST_TENS_7(X) TW_LIST_10(X, 7),
#define TW_LIST_TENS_9(X) TW_LIST_TENS_8(X) TW_LIST_10(X, 8),
#define TW_LIST_TENS_10(X) TW_LIST_TENS_9(X) TW_LIST_10(X, 9),
#define TW_LIST_TENS_11(X) TW_LIST_TENS_10(X) TW_LIST_10(X, 10),
#define TW_LIST_TENS_12(X) TW_LIST_TENS_11(X) TW_LIST_10(X, 11),

#define TW_TEXT(q, r) TW_TEXT_TENS_##q TW_TEXT_##r(q)
#define TW_LIST(X, q, r) TW_LIST_TENS_##q(X) TW_LIST_##r(X, q)

// Every N with its list: M(N, q, r, n, n + 1, .., n + 4), the last five being the numbers of the operands
// that follow the n registers. f32: n = N / 2 registers of one element.
#define TW_EVERY_N_F32(M) \
    M(8, 0, 4, 4, 5, 6, 7, 8) M(16, 0, 8, 8, 9, 10, 11, 12) M(24, 1, 2, 12, 13, 14, 15, 16) \
    M(32, 1, 6, 16, 17, 18, 19, 20) M(40, 1, 10, 20, 21, 22, 23, 24) M(48, 2, 4, 24, 25, 26, 27, 28) \
    M(56, 2, 8, 28, 29, 30, 31, 32) M(64, 3, 2, 32, 33, 34, 35, 36) M(72, 3, 6, 36, 37, 38, 39, 40) \
    M(80, 3, 10, 40, 41, 42, 43, 44) M(88, 4, 4, 44, 45, 46, 47, 48) M(96, 4, 8, 48, 49, 50, 51, 52) \
    M(104, 5, 2, 52, 53, 54, 55, 56) M(112, 5, 6, 56, 57, 58, 59, 60) M(120, 5, 10, 60, 61, 62, 63, 64) \
    M(128, 6, 4, 64, 65, 66, 67, 68) M(136, 6, 8, 68, 69, 70, 71, 72) M(144, 7, 2, 72, 73, 74, 75, 76) \
    M(152, 7, 6, 76, 77, 78, 79, 80) M(160, 7, 10, 80, 81, 82, 83, 84) M(168, 8, 4, 84, 85, 86, 87, 88) \
    M(176, 8, 8, 88, 89, 90, 91, 92) M(184, 9, 2, 92, 93, 94, 95, 96) M(192, 9, 6, 96, 97, 98, 99, 100) \
    M(200, 9, 10, 100, 101, 102, 103, 104) M(208, 10, 4, 104, 105, 106, 107, 108) M(216, 10, 8, 108, 109, 110, 111, 112) \
    M(224, 11, 2, 112, 113, 114, 115, 116) M(232, 11, 6, 116, 117, 118, 119, 120) M(240, 11, 10, 120, 121, 122, 123, 124) \
    M(248, 12, 4, 124, 125, 126, 127, 128) M(256, 12, 8, 128, 129, 130, 131, 132)
// f16: n = N / 4 registers of two elements.
#define TW_EVERY_N_F16(M) \
    M(8, 0, 2, 2, 3, 4, 5, 6) M(16, 0, 4, 4, 5, 6, 7, 8) M(24, 0, 6, 6, 7, 8, 9, 10) \
    M(32, 0, 8, 8, 9, 10, 11, 12) M(40, 0, 10, 10, 11, 12, 13, 14) M(48, 1, 2, 12, 13, 14, 15, 16) \
    M(56, 1, 4, 14, 15, 16, 17, 18) M(64, 1, 6, 16, 17, 18, 19, 20) M(72, 1, 8, 18, 19, 20, 21, 22) \
    M(80, 1, 10, 20, 21, 22, 23, 24) M(88, 2, 2, 22, 23, 24, 25, 26) M(96, 2, 4, 24, 25, 26, 27, 28) \
    M(104, 2, 6, 26, 27, 28, 29, 30) M(112, 2, 8, 28, 29, 30, 31, 32) M(120, 2, 10, 30, 31, 32, 33, 34) \
    M(128, 3, 2, 32, 33, 34, 35, 36) M(136, 3, 4, 34, 35, 36, 37, 38) M(144, 3, 6, 36, 37, 38, 39, 40) \
    M(152, 3, 8, 38, 39, 40, 41, 42) M(160, 3, 10, 40, 41, 42, 43, 44) M(168, 4, 2, 42, 43, 44, 45, 46) \
    M(176, 4, 4, 44, 45, 46, 47, 48) M(184, 4, 6, 46, 47, 48, 49, 50) M(192, 4, 8, 48, 49, 50, 51, 52) \
    M(200, 4, 10, 50, 51, 52, 53, 54) M(208, 5, 2, 52, 53, 54, 55, 56) M(216, 5, 4, 54, 55, 56, 57, 58) \
    M(224, 5, 6, 56, 57, 58, 59, 60) M(232, 5, 8, 58, 59, 60, 61, 62) M(240, 5, 10, 60, 61, 62, 63, 64) \
    M(248, 6, 2, 62, 63, 64, 65, 66) M(256, 6, 4, 64, 65, 66, 67, 68)
// s32: as f32, but above 32 multiples of 16 only.
#define TW_EVERY_N_S32(M) \
    M(8, 0, 4, 4, 5, 6, 7, 8) M(16, 0, 8, 8, 9, 10, 11, 12) M(24, 1, 2, 12, 13, 14, 15, 16) \
    M(32, 1, 6, 16, 17, 18, 19, 20) M(48, 2, 4, 24, 25, 26, 27, 28) M(64, 3, 2, 32, 33, 34, 35, 36) \
    M(80, 3, 10, 40, 41, 42, 43, 44) M(96, 4, 8, 48, 49, 50, 51, 52) M(112, 5, 6, 56, 57, 58, 59, 60) \
    M(128, 6, 4, 64, 65, 66, 67, 68) M(144, 7, 2, 72, 73, 74, 75, 76) M(160, 7, 10, 80, 81, 82, 83, 84) \
    M(176, 8, 8, 88, 89, 90, 91, 92) M(192, 9, 6, 96, 97, 98, 99, 100) \
    M(208, 10, 4, 104, 105, 106, 107, 108) M(224, 11, 2, 112, 113, 114, 115, 116) \
    M(240, 11, 10, 120, 121, 122, 123, 124) M(256, 12, 8, 128, 129, 130, 131, 132)
// clang-format on

// Wgmma<In, F16, N>::issue<A_TRANSPOSED, B_TRANSPOSED>(accumulators, descriptor of A, of B, add). With add = 0 the
// accumulators are overwritten. Transposed means that k is not the contiguous axis in shared memory, which only 16-bit types
// support.
template <class In, bool F16, int N> struct Wgmma;

// SCALES: the signs of A and B, then the transpositions, for the types that have them.
#define TW_WGMMA(In, F16, Type, K, TYPES, SCALES, X, N, q, r, n0, n1, n2, n3, n4)                              \
    template <> struct Wgmma<In, F16, N> {                                                                     \
        using Register = Type;                                                                                 \
        static constexpr int registers = n0;                                                                   \
        template <bool A_TRANSPOSED_, bool B_TRANSPOSED_>                                                      \
        static __device__ __forceinline__ void issue(Type (&acc)[n0], unsigned long long a, unsigned long long b, \
                                                     int add) {                                                \
            asm volatile("{.reg .pred add; setp.ne.b32 add, %" #n4 ", 0; "                                     \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k" #K "." TYPES " {" TW_TEXT(q, r) "}, "      \
                         "%" #n0 ", %" #n1 ", add" SCALES(n2, n3) ";}"                                         \
                         : TW_LIST(X, q, r)                                                                    \
                         : "l"(a), "l"(b), "n"(int(A_TRANSPOSED_)), "n"(int(B_TRANSPOSED_)), "r"(add)          \
                         : "memory");                                                                          \
        }                                                                                                      \
    };

#define TW_SIGNS_AND_TRANSPOSITIONS(n2, n3) ", 1, 1, %" #n2 ", %" #n3
#define TW_SIGNS(n2, n3) ", 1, 1"
#define TW_NO_SCALES(n2, n3) ""
#define TW_FLOAT(i) "+f"(acc[i])
#define TW_PACKED(i) "+r"(acc[i])
#define TW_F16_F32(...) TW_WGMMA(f16, false, float, 16, "f32.f16.f16", TW_SIGNS_AND_TRANSPOSITIONS, TW_FLOAT, __VA_ARGS__)
#define TW_BF16_F32(...) TW_WGMMA(bf16, false, float, 16, "f32.bf16.bf16", TW_SIGNS_AND_TRANSPOSITIONS, TW_FLOAT, __VA_ARGS__)
#define TW_F16_F16(...) TW_WGMMA(f16, true, unsigned, 16, "f16.f16.f16", TW_SIGNS_AND_TRANSPOSITIONS, TW_PACKED, __VA_ARGS__)
#define TW_E4M3_F32(...) TW_WGMMA(e4m3, false, float, 32, "f32.e4m3.e4m3", TW_SIGNS, TW_FLOAT, __VA_ARGS__)
#define TW_E5M2_F32(...) TW_WGMMA(e5m2, false, float, 32, "f32.e5m2.e5m2", TW_SIGNS, TW_FLOAT, __VA_ARGS__)
#define TW_S8_S32(...) TW_WGMMA(s8, false, int, 32, "s32.s8.s8", TW_NO_SCALES, TW_PACKED, __VA_ARGS__)
#define TW_U8_S32(...) TW_WGMMA(u8, false, int, 32, "s32.u8.u8", TW_NO_SCALES, TW_PACKED, __VA_ARGS__)
TW_EVERY_N_F32(TW_F16_F32)
TW_EVERY_N_F32(TW_BF16_F32)
TW_EVERY_N_F16(TW_F16_F16)
TW_EVERY_N_F32(TW_E4M3_F32)
TW_EVERY_N_F32(TW_E5M2_F32)
TW_EVERY_N_S32(TW_S8_S32)
TW_EVERY_N_S32(TW_U8_S32)
