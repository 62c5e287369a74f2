// Thread block clusters (sm_90+): blocks that run together and reach each other's shared memory.
#pragma once

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of all threads of all blocks of the cluster, whose warps need not be converged, after which all see mbarriers
// that were initialised and fenced (mbarrier_init_fence) before it. NOTE: it orders nothing else; with a release the
// assembler waits for all memory accesses, which takes a tenth of a microsecond where there were none.
__device__ __forceinline__ void cluster_sync_barriers() {
    asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;" ::: "memory");
}

// The address, in the window of the whole cluster, of what lies at `smem` in block `rank`.
__device__ __forceinline__ unsigned cluster_address(unsigned smem, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
    return address;
}

// Stores 4 or 16 bytes in another block; its barrier counts them when they are there. Addresses are those of
// cluster_address.
__device__ __forceinline__ void store_remote(unsigned address, unsigned x, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address), "r"(x),
                 "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void store_remote(unsigned address, uint4 x, unsigned barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     address),
                 "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
                 : "memory");
}
