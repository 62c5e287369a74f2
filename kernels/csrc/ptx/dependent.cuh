// Programmatic dependent launch (sm_90+): a kernel may start while the one before it in the stream ends. On
// older architectures both functions do nothing, and kernels start in turn.
#pragma once

// Lets the next kernel start as soon as every block of this one called this or left, and there is room.
__device__ __forceinline__ void release_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and what it wrote is visible. Some thread of every block waits, and
// every thread that reads or writes global memory waits before it does. Before the wait a kernel may touch its
// parameters and shared memory, and bring operands into the L2: nothing reads them, and all writes meet there.
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
