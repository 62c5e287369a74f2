// Execution control: which kernels, CTAs, warps and lanes run, and with how many registers. Sections: programmatic
// dependent launch, clusters, warpgroup registers, one lane of a warp, the SM.
#pragma once

// Programmatic dependent launch (sm_90+): a kernel may start while the previous kernel of the stream ends. On older
// architectures both functions do nothing, and kernels run one after the other.

// Lets the next kernel start once every CTA of this one has called this or has ended, and there is room.
__device__ __forceinline__ void release_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the previous kernel has ended and its writes are visible. At least one thread of every CTA waits, and
// every thread waits before it reads or writes global memory. Before the wait a kernel may use its parameters and
// shared memory, and prefetch operands into the L2: a prefetch returns no data, and all writes meet in the L2.
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Clusters (sm_90+): CTAs that run at the same time and can access each other's shared memory.

__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// A barrier of all threads of the cluster in two steps; warps need not be converged. After the wait a thread sees the
// mbarriers that were initialised and fenced (mbarrier_init_fence) before the arrivals, and all CTAs have started. NOTE: it
// orders nothing else. With a release the assembler waits for all memory accesses, which takes a tenth of a microsecond
// even without any.
__device__ __forceinline__ void cluster_arrive_barriers() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait_barriers() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// The address, in the cluster's shared window, of `smem` in CTA `rank`.
__device__ __forceinline__ unsigned cluster_address(unsigned smem, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(smem), "r"(rank));
    return address;
}

// Stores 4 or 16 bytes in another CTA, whose barrier counts them on arrival. Both addresses come from cluster_address.
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

// Warpgroup registers (sm_90a): all warps of a warpgroup return registers, or wait until they have REGISTERS each.
template <int REGISTERS> __device__ __forceinline__ void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// elect.sync (sm_90+): true in one lane of a converged warp. Unlike a comparison of threadIdx.x it tells the assembler
// that what follows runs in a single lane, so that its operands stay in uniform registers.
__device__ __forceinline__ bool elect_lane() {
    unsigned elected;
    asm volatile("{.reg .pred one; elect.sync _|one, 0xFFFFFFFF; selp.u32 %0, 1, 0, one;}" : "=r"(elected)::"memory");
    return elected;
}

// The number of the SM that the CTA runs on.
__device__ __forceinline__ unsigned sm_id() {
    unsigned number;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(number));
    return number;
}
