// TMA (sm_90+): copies of whole boxes between global and shared memory, described by a tensor map that the
// host encodes and passes by value as a __grid_constant__ parameter.
#pragma once

struct alignas(64) TensorMap { unsigned long long words[16]; };

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads the box whose first element is (column, row, batch); elements outside become zeros. `barrier` gets
// the bytes of the whole box in either case.
__device__ __forceinline__ void tma_load(unsigned smem, const TensorMap* map, unsigned barrier, int column, int row,
                                         int batch) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(smem), "l"(map), "r"(column), "r"(row), "r"(batch),
                 "r"(barrier)
                 : "memory");
}
