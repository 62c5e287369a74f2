// Programmatic dependent launch (sm_90+): a kernel may start while the one before it in the stream ends. On
// older architectures both functions do nothing, and kernels start in turn.
#pragma once

// Lets the next kernel start as soon as blocks of this one leave room.
__device__ __forceinline__ void release_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the kernel before has ended and what it wrote is visible. Before this nothing but parameters
// and shared memory may be touched.
__device__ __forceinline__ void await_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
