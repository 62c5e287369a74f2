// Loads, stores and atomics that need PTX: shared memory by its 32-bit address, global memory with cache hints, and words
// of global memory by which CTAs synchronise.
#pragma once

// The address of shared memory in the shared window, which PTX instructions take.
__device__ __forceinline__ unsigned smem_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The same value, which the compiler takes for a new one here: it neither keeps the parts of an address to add them up at
// each use, nor calculates ahead what follows from a number.
__device__ __forceinline__ const char* pinned(const char* address) {
    asm volatile("" : "+l"(address));
    return address;
}
__device__ __forceinline__ int pinned(int number) {
    asm volatile("" : "+r"(number));
    return number;
}

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

// Loads 16 bytes that are read once: the L1 does not keep them, the L2 fetches 128 bytes at least. Leaves `x` unchanged
// unless `wanted`. NOTE: volatile keeps the loads ahead of the multiplications that they overlap with. Not ld.global.nc:
// the assembler may move that above griddepcontrol.wait, where the previous kernel may still write the bytes.
__device__ __forceinline__ void load_global_128_once(unsigned (&x)[4], const void* from, bool wanted) {
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"
                 " @p ld.global.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
                 : "l"(from), "r"(int(wanted)));
}

// Two bytes of global memory. Unless `wanted`, 0, and nothing is read. NOTE: of a generic load the compiler knows neither that
// stores to shared memory leave its bytes alone nor how to do without a branch.
__device__ __forceinline__ unsigned short load_global_16(const void* from, bool wanted) {
    unsigned short x;
    asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n mov.b16 %0, 0;\n @p ld.global.b16 %0, [%1];\n}"
                 : "=h"(x) : "l"(from), "r"(int(wanted)));
    return x;
}

// Prefetches `bytes` into the L2 (sm_90+; does nothing before); `from` and `bytes` are multiples of 16. No instruction
// sees the data, so the previous kernel may still write it: all writes meet in the L2.
__device__ __forceinline__ void l2_prefetch(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    if (bytes) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// Words of global memory by which the CTAs of a launch publish what they wrote (PTX ISA, memory consistency model, scope
// gpu). A write that precedes an add, in the same thread or in threads that met it at a barrier, is visible to a thread
// that reads the sum, and to threads that meet that thread at a barrier.
// NOTE: __threadfence() is a fence.sc, which takes longer and orders more than one word needs.

// Adds to a word and returns its earlier value.
__device__ __forceinline__ unsigned atomic_add_acq_rel(unsigned* word, unsigned x) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(word), "r"(x) : "memory");
    return before;
}
__device__ __forceinline__ unsigned long long atomic_add_acq_rel(unsigned long long* word, unsigned long long x) {
    unsigned long long before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(word), "l"(x) : "memory");
    return before;
}
__device__ __forceinline__ unsigned long long load_acquire(const unsigned long long* word) {
    unsigned long long x;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(word) : "memory");
    return x;
}
// Ordered after every access to the word that this thread has observed.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long x) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
}
