// What warp-specialised kernels need beside wgmma (sm_90a): registers moved from one warpgroup to another,
// and barriers of some of a block's warps.
#pragma once

// All warps of a warpgroup give registers back, or wait until they have as many as asked.
template <int REGISTERS> __device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Barrier `id` (1 .. 15; 0 is __syncthreads) is complete when `threads` threads have arrived.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
