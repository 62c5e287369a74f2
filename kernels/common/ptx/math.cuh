// Approximate functions of the special function unit; results and operands below 2^-126 count as 0.
#pragma once

// 2^x, within a factor of 1 +- 2^-22.
__device__ __forceinline__ float ex2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x, within a factor of 1 +- 2^-23.
__device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
