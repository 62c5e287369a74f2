// Barriers of some of a CTA's threads: mbarriers and named barriers.
// mbarrier (sm_90+): counts arrivals and the bytes of asynchronous copies. A barrier starts in phase 0 and enters the
// next phase when all arrivals and bytes of the current one are in; a wait names the parity of the phase that must be
// complete. Addresses come from smem_address.
#pragma once

__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the barriers that this thread initialised visible to the asynchronous proxy, and to the CTAs of the cluster that
// then meet in cluster_wait_barriers.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at a barrier of another CTA of the cluster; the address comes from cluster_address. NOTE: with release at
// cluster scope the assembler first waits for all memory accesses, which costs a third of the throughput when consumers
// release stages. They have only read the stage, and wgmma_wait has waited for that.
__device__ __forceinline__ void mbarrier_arrive_remote(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives and adds `bytes`, which copies will deliver, to what the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
    unsigned done;
    asm volatile("{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;"
                 " selp.u32 %0, 1, 0, done;}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done;
}

__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
    while (!mbarrier_try_wait(barrier, parity)) {}
}

// Named barriers. Barrier `id` (0 .. 15; __syncthreads uses 0) completes when `threads` threads have arrived.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
