// Element types and their conversions, without CUDA headers.
#pragma once

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct tf32 { float value; }; // a float of which the tensor cores read the upper 19 bits
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };
struct s8 { signed char value; };
struct u8 { unsigned char value; };
// Types of fewer than 8 bits: a byte holds neighbours of a row, the first in its low bits.
struct s4 { unsigned char bits; };
struct u4 { unsigned char bits; };
struct u1 { unsigned char bits; };    // 0 or 1
struct sign1 { unsigned char bits; }; // a sign bit: 0 stands for 1, 1 for -1

// The number of elements in one T.
template <class T> struct Packing { static constexpr int value = 1; };
template <> struct Packing<s4> { static constexpr int value = 2; };
template <> struct Packing<u4> { static constexpr int value = 2; };
template <> struct Packing<u1> { static constexpr int value = 8; };
template <> struct Packing<sign1> { static constexpr int value = 8; };

// The bytes of `elements`, which fill whole Ts.
template <class T> __device__ __forceinline__ constexpr int bytes_of(int elements) {
    return elements / Packing<T>::value * int(sizeof(T));
}

__device__ __forceinline__ float to_accumulator(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float to_accumulator(bf16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
// Both fp8 types are converted by way of f16, which every architecture converts: e5m2 is the upper half of an f16; e4m3 has an
// exponent bias of 7 instead of 15, and its one NaN is all ones.
__device__ __forceinline__ float to_accumulator(e5m2 x) {
    return to_accumulator(f16{static_cast<unsigned short>(x.bits << 8)});
}
__device__ __forceinline__ float to_accumulator(e4m3 x) {
    const unsigned magnitude = x.bits & 0x7F, sign = (x.bits & 0x80) << 8;
    if (magnitude == 0x7F) return __uint_as_float(0x7FFFFFFF);
    return 256.0f * to_accumulator(f16{static_cast<unsigned short>(sign | magnitude << 7)});
}
__device__ __forceinline__ int to_accumulator(s8 x) { return x.value; }
__device__ __forceinline__ int to_accumulator(u8 x) { return x.value; }
__device__ __forceinline__ int to_accumulator(int x) { return x; }
__device__ __forceinline__ float to_accumulator(tf32 x) { return x.value; }
__device__ __forceinline__ float to_accumulator(float x) { return x; }
__device__ __forceinline__ double to_accumulator(double x) { return x; }

// Element `index` of a packed byte.
__device__ __forceinline__ int to_accumulator(s4 x, int index) { return int(unsigned(x.bits) << (28 - 4 * index)) >> 28; }
__device__ __forceinline__ int to_accumulator(u4 x, int index) { return x.bits >> 4 * index & 15; }
__device__ __forceinline__ int to_accumulator(u1 x, int index) { return x.bits >> index & 1; }
__device__ __forceinline__ int to_accumulator(sign1 x, int index) { return 1 - 2 * (x.bits >> index & 1); }

// The value of element i, counted from `first`.
template <class T> __device__ __forceinline__ auto element_of(const T* first, long long i) {
    if constexpr (Packing<T>::value > 1)
        return to_accumulator(first[i / Packing<T>::value], int(i % Packing<T>::value));
    else
        return to_accumulator(first[i]);
}

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
template <> struct Convert<int> {
    static __device__ __forceinline__ int from(int x) { return x; }
};
template <> struct Convert<double> {
    static __device__ __forceinline__ double from(double x) { return x; }
};
