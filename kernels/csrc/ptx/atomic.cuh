// Words of global memory by which the blocks of a launch tell each other what they wrote before (PTX ISA, memory consistency
// model, scope gpu). What a thread, or threads that met it in a barrier, wrote before it added to a word is there for who
// finds that in the word, and for threads that then meet it in a barrier.
// NOTE: __threadfence() is a fence.sc, which takes longer and orders what one word does not need.
#pragma once

// Adds to a word and gives back what it was.
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
// Takes its place after all that its thread knows to have been done to the word.
__device__ __forceinline__ void store_relaxed(unsigned long long* word, unsigned long long x) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(x) : "memory");
}
