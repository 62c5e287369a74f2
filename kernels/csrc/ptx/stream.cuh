// 16-byte loads of read-only memory with hints for data that is read once.
#pragma once

enum class StreamCache { plain, no_allocate, evict_first }; // no_allocate: not in the L1; evict_first: nor kept in the L2

// A descriptor that marks lines of the L2 as the first to go; for StreamCache::evict_first.
__device__ __forceinline__ unsigned long long evict_first_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// load() leaves `x` as it is unless `wanted`. FETCH: bytes the L2 fetches at least; 0 for its own choice.
// NOTE: volatile keeps the loads in front of the multiplications they are meant to run ahead of.
template <StreamCache CACHE, int FETCH> struct Stream;

#define TILEWRIGHT_STREAM(CACHE, FETCH, HINTS, POLICY)                                                                   \
    template <> struct Stream<StreamCache::CACHE, FETCH> {                                                               \
        static __device__ __forceinline__ void load(unsigned (&x)[4], const void* from, bool wanted,                     \
                                                    unsigned long long policy) {                                         \
            asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %5, 0;\n"                                                   \
                         " @p ld.global.nc" HINTS ".v4.b32 {%0, %1, %2, %3}, [%4]" POLICY ";\n}"                         \
                         : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])                                                \
                         : "l"(from), "r"(int(wanted)), "l"(policy));                                                    \
        }                                                                                                                \
    };
#define TILEWRIGHT_STREAM_CACHES(FETCH, HINT)                                                                            \
    TILEWRIGHT_STREAM(plain, FETCH, HINT, "")                                                                            \
    TILEWRIGHT_STREAM(no_allocate, FETCH, ".L1::no_allocate" HINT, "")                                                   \
    TILEWRIGHT_STREAM(evict_first, FETCH, ".L1::no_allocate.L2::cache_hint" HINT, ", %6")

TILEWRIGHT_STREAM_CACHES(0, "")
TILEWRIGHT_STREAM_CACHES(128, ".L2::128B")
TILEWRIGHT_STREAM_CACHES(256, ".L2::256B")
#undef TILEWRIGHT_STREAM_CACHES
#undef TILEWRIGHT_STREAM

// Brings `bytes`, a multiple of 16 from a 16-byte boundary on, into the L2 and no further (sm_90+, nothing before).
// Nothing is read that an instruction could see, so they may still be written: the L2 is where all writes meet.
__device__ __forceinline__ void l2_prefetch(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    if (bytes) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
