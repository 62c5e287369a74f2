// Element types and their conversions, without CUDA headers.
#pragma once

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

__device__ __forceinline__ float to_real(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float to_real(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
__device__ __forceinline__ float to_real(float x) { return x; }
__device__ __forceinline__ double to_real(double x) { return x; }

template <class T> struct Convert;
template <> struct Convert<f16> {
    static __device__ __forceinline__ f16 from(float x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <> struct Convert<bf16> {
    static __device__ __forceinline__ bf16 from(float x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <> struct Convert<float> {
    static __device__ __forceinline__ float from(float x) { return x; }
};
template <> struct Convert<double> {
    static __device__ __forceinline__ double from(double x) { return x; }
};
