// TMA (sm_90+): copies of whole boxes between global and shared memory. A tensor map, which the host encodes and passes by
// value as a __grid_constant__ parameter, describes the tensor and the box.
#pragma once

struct alignas(64) TensorMap { unsigned long long words[16]; };

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// How long the L2 keeps the data of a copy.
enum class CacheHint { normal = 0, evict_first = 1, evict_last = 2 };

template <CacheHint HINT> __device__ __forceinline__ unsigned long long cache_policy() {
    unsigned long long policy;
    if constexpr (HINT == CacheHint::evict_first)
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

// Loads the box whose first element is (column, row, batch), with zeros outside the tensor. `barrier` counts the bytes of the
// whole box in any case.
template <CacheHint HINT = CacheHint::normal>
__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap* map, unsigned barrier, int column, int row,
                                         int batch) {
    if constexpr (HINT == CacheHint::normal)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(batch),
                     "r"(barrier)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(batch),
                     "r"(barrier), "l"(cache_policy<HINT>())
                     : "memory");
}

// Prefetches a box into the L2. No instruction sees the data, so the previous kernel may still write it: all writes meet in
// the L2.
__device__ __forceinline__ void tma_prefetch(const TensorMap* map, int column, int row, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(column), "r"(row),
                 "r"(batch)
                 : "memory");
}

// As tma_load(), into the same address of every CTA of the cluster whose bit is set in `ctas`. The barrier at the same address
// of each counts the bytes.
template <CacheHint HINT>
__device__ __forceinline__ void tma_load_multicast(unsigned smem, const TensorMap* map, unsigned barrier, int column, int row,
                                                   int batch, unsigned short ctas) {
    if constexpr (HINT == CacheHint::normal)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(batch),
                     "r"(barrier), "h"(ctas)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(smem), "l"(map), "r"(column), "r"(row),
                     "r"(batch), "r"(barrier), "h"(ctas), "l"(cache_policy<HINT>())
                     : "memory");
}

// Stores a box from shared memory; elements outside the tensor are dropped. One thread issues, commits and awaits the stores;
// every thread that wrote the box must have called tma_store_fence() before.
template <CacheHint HINT>
__device__ __forceinline__ void tma_store(unsigned smem, const TensorMap* map, int column, int row, int batch) {
    if constexpr (HINT == CacheHint::normal)
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
                     "r"(column), "r"(row), "r"(batch), "r"(smem)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], %5;" ::"l"(
                         map),
                     "r"(column), "r"(row), "r"(batch), "r"(smem), "l"(cache_policy<HINT>())
                     : "memory");
}
__device__ __forceinline__ void tma_store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but the last PENDING groups of stores have read their shared memory.
template <int PENDING> __device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
