// What a kernel of kernels/ needs of CUDA, for g++: the threads of a CTA are fibers of one process, CTAs run one after another.
// Included first, so that the sources compile as they lie. The functions of common/ptx beside this file stand in for PTX.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __CUDA_ARCH__ 800
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __shared__ thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

using std::max;
using std::min;

struct Index { int x, y, z; };
extern thread_local Index threadIdx, blockIdx, gridDim, blockDim;
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

// The threads that meet at a barrier or in an instruction of a warp wait for all others.
void cta_barrier();
void __syncwarp();
inline void __syncthreads() { cta_barrier(); }

// Calls `act` once with what all 32 lanes of the caller's warp gave, when the last of them calls; then all go on.
struct Lane { const void* in[3]; void* out; };
void warp_instruction(const Lane& lane, const std::function<void(const Lane (&)[32])>& act);

// Copies of a thread that are under way, in groups. They are made at once or at the last moment that the kernel allows.
void async_copy(unsigned smem, const void* from, int bytes, bool inside);
void async_commit();
void async_wait(int pending);

extern thread_local char smem[]; // dynamic shared memory; an address in the shared window counts from its start

inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline double __hiloint2double(unsigned high, unsigned low) {
    const std::uint64_t bits = std::uint64_t(high) << 32 | low;
    double x;
    std::memcpy(&x, &bits, 8);
    return x;
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31));
}
template <class T> T __ldcg(const T* from) { return *from; }
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* word, unsigned x) {
    const unsigned before = *word;
    *word += x;
    return before;
}

// The conversions of common/ptx/convert.cuh.
inline void cvt_f32_f16(float& y, unsigned short bits) {
    _Float16 x;
    std::memcpy(&x, &bits, 2);
    y = float(x);
}
inline void cvt_rn_f16_f32(unsigned short& bits, float x) {
    const _Float16 y = _Float16(x);
    std::memcpy(&bits, &y, 2);
}
inline void cvt_rn_bf16_f32(unsigned short& bits, float x) {
    unsigned word;
    std::memcpy(&word, &x, 4);
    bits = x != x ? 0x7FFF : (word + 0x7FFF + (word >> 16 & 1)) >> 16;
}
