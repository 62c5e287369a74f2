// cp.async (sm_80+): copies from global to shared memory that do not pass through registers.
#pragma once
#include "common/ptx/load_store.cuh"

// Copies BYTES from global memory; if `inside` is false it writes zeros and reads nothing.
template <int BYTES>
__device__ __forceinline__ void cp_async(unsigned smem, const void* global, bool inside) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
    if constexpr (BYTES == 16)
        asm volatile("{.reg .pred outside; setp.eq.s32 outside, %2, 0;"
                     " cp.async.cg.shared.global.L2::128B [%0], [%1], 16, outside;}" ::"r"(smem), "l"(global),
                     "r"(int(inside))
                     : "memory");
    else
        asm volatile("{.reg .pred outside; setp.eq.s32 outside, %2, 0;"
                     " cp.async.ca.shared.global [%0], [%1], %3, outside;}" ::"r"(smem), "l"(global),
                     "r"(int(inside)), "n"(BYTES)
                     : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Arrives at an mbarrier once all copies that this thread issued are complete. The barrier counts this thread.
__device__ __forceinline__ void cp_async_arrive(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until at most PENDING of this thread's groups are in flight.
template <int PENDING> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
