// Copies rows of any alignment to rows that start at multiples of 128 bytes, in a launch before the kernel that reads them. A warp
// copies a row; its lanes write 16 bytes each, put together from the two aligned chunks that they lie across.
#pragma once

#define REPACK_PARAMETERS                                                                                          \
    const unsigned char *source, unsigned char *target, int rows, int bytes, long long source_stride,              \
        long long target_stride, long long source_batch, long long target_batch

// The four words that start `shift` bytes into two adjacent aligned chunks.
__device__ __forceinline__ uint4 shifted(uint4 low, uint4 high, int shift) {
    unsigned w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    if (shift & 8) w[0] = w[2], w[1] = w[3], w[2] = w[4], w[3] = w[5], w[4] = w[6], w[5] = w[7];
    if (shift & 4) w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = w[4], w[4] = w[5];
    const int bits = shift % 4 * 8;
    return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
            __funnelshift_r(w[3], w[4], bits)};
}

// The 16 bytes from `first` on of a row that has the bytes `begin` to `end`, byte by byte: for the ends of a row, outside of which
// nothing may be read. Bytes outside are 0.
__device__ __forceinline__ uint4 gathered(const unsigned char* row, int first, int begin, int end) {
    unsigned w[4] = {};
    for (int i = 0; i < 16 && first + i < end; ++i)
        if (begin == 0 || first + i >= begin) w[i / 4] |= unsigned(row[first + i]) << (i % 4 * 8);
    return {w[0], w[1], w[2], w[3]};
}

// Copies the row of this warp; blockIdx = (8 rows, 0, batch). TO_END puts zeros before a row, fewer than 16 bytes, so that it ends
// at a multiple of 16 bytes: for rows along k, whose tiles are counted from their end.
template <bool TO_END> __device__ __forceinline__ void repack_row(REPACK_PARAMETERS) {
    const int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= rows) return;
    const int begin = TO_END ? -bytes & 15 : 0, end = begin + bytes;
    const unsigned char* row = source + blockIdx.z * source_batch + index * source_stride - begin;
    uint4* out = reinterpret_cast<uint4*>(target + blockIdx.z * target_batch + index * target_stride);
    const int shift = reinterpret_cast<unsigned long long>(row) & 15;
    const uint4* aligned = reinterpret_cast<const uint4*>(row - shift);
    // NOTE: four chunks are loaded before the first is stored, because the compiler moves no load above a store that may overlap.
    constexpr int chunks = 4;
    for (int first = threadIdx.x % 32; first * 16 < end; first += 32 * chunks) {
        uint4 loaded[chunks];
#pragma unroll
        for (int j = 0; j < chunks; ++j) {
            const int i = first + 32 * j;
            const bool inside = i * 16 >= shift + begin && (i + 2) * 16 - shift <= end;
            if (inside)
                loaded[j] = shifted(aligned[i], aligned[i + 1], shift);
            else if (i * 16 < end)
                loaded[j] = gathered(row, i * 16, begin, end);
        }
#pragma unroll
        for (int j = 0; j < chunks; ++j)
            if ((first + 32 * j) * 16 < end) out[first + 32 * j] = loaded[j];
    }
}
