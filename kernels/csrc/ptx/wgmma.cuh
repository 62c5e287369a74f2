// wgmma m64nNk16 (sm_90a): a warpgroup multiplies tiles that lie in shared memory, asynchronously; f16 or
// bf16 inputs, N a multiple of 8 up to 256. D = A * B + D in registers: pair p of a thread (two f32, or one
// register of two f16) is elements (16 w + lane / 4 + 8 (p % 2), 8 (p / 2) + 2 (lane % 4) + {0, 1}) of the
// 64 x N tile, w the warp of the warpgroup.
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

// Start address, leading and stride offsets in units of 16 bytes; layout type 1 is the 128-byte swizzle.
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned smem, unsigned leading, unsigned stride) {
    return (smem & 0x3FFFFu) >> 4 | static_cast<unsigned long long>(leading) << 16 |
           static_cast<unsigned long long>(stride) << 32 | 1ull << 62;
}

// Wgmma<In, F16, N>::issue<A_TRANSPOSED, B_TRANSPOSED>(accumulators, descriptor of A, of B). Transposed
// means that k is not the contiguous axis in shared memory.
template <class In, bool F16, int N> struct Wgmma;

#define TW_WGMMA(In, F16, Type, TYPES, X, N, q, r, n0, n1, n2, n3)                                             \
    template <> struct Wgmma<In, F16, N> {                                                                     \
        using Register = Type;                                                                                 \
        static constexpr int registers = n0;                                                                   \
        template <bool A_TRANSPOSED_, bool B_TRANSPOSED_>                                                      \
        static __device__ __forceinline__ void issue(Type (&acc)[n0], unsigned long long a, unsigned long long b) { \
            asm volatile("{.reg .pred add; setp.ne.b32 add, 1, 0; "                                            \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16." TYPES " {" TW_TEXT(q, r) "}, "          \
                         "%" #n0 ", %" #n1 ", add, 1, 1, %" #n2 ", %" #n3 ";}"                                 \
                         : TW_LIST(X, q, r)                                                                    \
                         : "l"(a), "l"(b), "n"(int(A_TRANSPOSED_)), "n"(int(B_TRANSPOSED_))                    \
                         : "memory");                                                                          \
        }                                                                                                      \
    };

#define TW_FLOAT(i) "+f"(acc[i])
#define TW_PACKED(i) "+r"(acc[i])
#define TW_F16_F32(...) TW_WGMMA(f16, false, float, "f32.f16.f16", TW_FLOAT, __VA_ARGS__)
#define TW_BF16_F32(...) TW_WGMMA(bf16, false, float, "f32.bf16.bf16", TW_FLOAT, __VA_ARGS__)
#define TW_F16_F16(...) TW_WGMMA(f16, true, unsigned, "f16.f16.f16", TW_PACKED, __VA_ARGS__)
TW_EVERY_N_F32(TW_F16_F32)
TW_EVERY_N_F32(TW_BF16_F32)
TW_EVERY_N_F16(TW_F16_F16)
