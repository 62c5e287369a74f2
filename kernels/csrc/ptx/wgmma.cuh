// wgmma m64nNkK (sm_90a): a warpgroup multiplies tiles that lie in shared memory, asynchronously; N a
// multiple of 8 up to 256, K 32 bytes. D = A * B + D in registers: pair p of a thread (two f32 or s32, or
// one register of two f16) is elements (16 w + lane / 4 + 8 (p % 2), 8 (p / 2) + 2 (lane % 4) + {0, 1}) of
// the 64 x N tile, w the warp of the warpgroup.
#pragma once
#include "ptx/convert.cuh"
#include "ptx/wgmma_registers.cuh"

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

// Wgmma<In, F16, N>::issue<A_TRANSPOSED, B_TRANSPOSED>(accumulators, descriptor of A, of B, add): where add
// is 0 the accumulators are overwritten. Transposed means that k is not the contiguous axis in shared
// memory; only the 16-bit types can be.
template <class In, bool F16, int N> struct Wgmma;

// SCALES: the signs of A and B and, after them, the transpositions, as far as the type has them.
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
