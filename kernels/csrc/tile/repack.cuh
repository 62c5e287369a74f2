// Copies rows of any byte alignment to rows that start at multiples of 128 bytes, for TMA. A warp takes a
// row; its lanes write 16 bytes each, put together from the two aligned chunks that they lie across. Bytes
// between the end of a row and the next are of no account: tensor maps end before them.
#pragma once
#include "ptx/dependent.cuh"

// The four words that start `shift` bytes into the eight of two aligned chunks.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, int shift) {
    unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = w[6], w[5] = w[7];
    if (shift & 4) w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4], w[4] = w[5];
    const int bits = shift % 4 * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
            __funnelshift_r(w[3], w[4], bits)};
}

// The 16 bytes from `first` on of a row of `bytes`, byte by byte: for the ends of a row, outside of which
// nothing may be read. What is outside is 0.
__device__ __forceinline__ uint4 gathered(const unsigned char* row, int first, int bytes) {
    unsigned w[4] = {};
    for (int i = 0; i < 16 && first + i < bytes; ++i) w[i / 4] |= unsigned(row[first + i]) << (i % 4 * 8);
    return {w[0], w[1], w[2], w[3]};
}

// blockIdx = (group of rows, 0, batch); each warp of a block copies a row.
extern "C" __global__ void __launch_bounds__(256)
    repack_rows(const unsigned char* __restrict__ source, unsigned char* __restrict__ target, int rows, int bytes,
                long long source_stride, long long target_stride, long long source_batch, long long target_batch) {
#if PLACEMENT == 0
    release_next_kernel();
#endif
    await_previous_kernel();
    const int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= rows) return;
    const unsigned char* row = source + blockIdx.z * source_batch + index * source_stride;
    uint4* out = reinterpret_cast<uint4*>(target + blockIdx.z * target_batch + index * target_stride);
    const int shift = reinterpret_cast<unsigned long long>(row) & 15;
    const uint4* aligned = reinterpret_cast<const uint4*>(row - shift);
#pragma unroll 4
    for (int i = threadIdx.x % 32; i * 16 < bytes; i += 32) {
        const bool inside = i * 16 >= shift && (i + 2) * 16 - shift <= bytes;
        out[i] = inside ? shifted(__ldg(aligned + i), __ldg(aligned + i + 1), shift) : gathered(row, i * 16, bytes);
    }
}
