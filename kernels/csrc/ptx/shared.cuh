// Shared memory by its address in the shared window (smem_address), for what has no pointer.
#pragma once

__device__ __forceinline__ unsigned short load_shared_16(unsigned address) {
    unsigned short x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ unsigned load_shared_32(unsigned address) {
    unsigned x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
    return x;
}
__device__ __forceinline__ uint4 load_shared_128(unsigned address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}
__device__ __forceinline__ void store_shared_32(unsigned address, unsigned x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}
