// elect.sync (sm_90+): true in one lane of a converged warp. Unlike a comparison of threadIdx.x it tells
// the assembler that what follows runs in a single lane, so that its operands stay in uniform registers.
#pragma once

__device__ __forceinline__ bool elect_lane() {
    unsigned elected;
    asm volatile("{.reg .pred one; elect.sync _|one, 0xFFFFFFFF; selp.u32 %0, 1, 0, one;}" : "=r"(elected)::"memory");
    return elected;
}
