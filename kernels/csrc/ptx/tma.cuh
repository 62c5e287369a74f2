// TMA (sm_90+): copies of whole boxes between global and shared memory, described by a tensor map that the
// host encodes and passes by value as a __grid_constant__ parameter.
#pragma once

struct alignas(64) TensorMap { unsigned long long words[16]; };

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// How long the L2 should keep what a copy brings in.
enum class CacheHint { normal = 0, evict_first = 1, evict_last = 2 };

template <CacheHint HINT> __device__ __forceinline__ unsigned long long cache_policy() {
    unsigned long long policy;
    if constexpr (HINT == CacheHint::evict_first)
        asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    else
        asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

// Loads the box whose first element is (column, row, batch); elements outside become zeros. `barrier` gets
// the bytes of the whole box in either case.
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

// Brings a box into the L2 and no further. Nothing is read that an instruction could see, so the box may still be
// written: the L2 is where all writes meet.
__device__ __forceinline__ void tma_prefetch(const TensorMap* map, int column, int row, int batch) {
    asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(column), "r"(row),
                 "r"(batch)
                 : "memory");
}

// As tma_load(), into the same place of every block of the cluster whose bit is set in `blocks`, where the
// barrier at the same place gets the bytes.
template <CacheHint HINT>
__device__ __forceinline__ void tma_load_multicast(unsigned smem, const TensorMap* map, unsigned barrier, int column, int row,
                                                   int batch, unsigned short blocks) {
    if constexpr (HINT == CacheHint::normal)
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(batch),
                     "r"(barrier), "h"(blocks)
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(smem), "l"(map), "r"(column), "r"(row),
                     "r"(batch), "r"(barrier), "h"(blocks), "l"(cache_policy<HINT>())
                     : "memory");
}

// Stores a box from shared memory; what lies outside of the tensor is dropped. One thread issues stores,
// commits them and waits for them; what the others wrote to shared memory must have been made visible with
// tma_store_fence by those who wrote it.
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

// Waits until the shared memory of all but the last PENDING groups of stores was read.
template <int PENDING> __device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
