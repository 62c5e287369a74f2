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

// The byte at `at` of a row that has the bytes `begin` to `end`; 0 outside, where nothing may be read.
__device__ __forceinline__ unsigned row_byte(const unsigned char* row, int at, int begin, int end) {
    return at >= begin && at < end ? row[at] : 0;
}

// Copies the row of this warp; blockIdx = (8 rows, 0, batch). TO_END puts zeros before a row, fewer than 16 bytes, so that it ends
// at a multiple of 16 bytes: for rows along k, whose tiles are counted from their end.
// The first two and the last two chunks may lie across an end of the row. They are copied byte by byte, two bytes a lane; of those
// that do not, the other copy writes the same bytes again.
template <bool TO_END> __device__ __forceinline__ void repack_row(REPACK_PARAMETERS) {
    const int index = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (index >= rows) return;
    const int begin = TO_END ? -bytes & 15 : 0, end = begin + bytes;
    const unsigned char* row = source + blockIdx.z * source_batch + index * source_stride - begin;
    unsigned char* const to = target + blockIdx.z * target_batch + index * target_stride;
    const int shift = reinterpret_cast<unsigned long long>(row) & 15, last = (end - 1) / 16;
    const uint4* aligned = reinterpret_cast<const uint4*>(row - shift);

    const int end_chunk = lane < 16 ? lane / 8 : last - 3 + lane / 8, at = end_chunk * 16 + lane % 8 * 2;
    const unsigned ends = row_byte(row, at, begin, end) | row_byte(row, at + 1, begin, end) << 8;
    // NOTE: the loads of four chunks depend on no branch and come before the first store, because the compiler moves no load above
    // a store that may overlap; so they are in flight together.
    constexpr int chunks = 4;
    const auto inside = [&](int i) { return i * 16 >= shift + begin && (i + 2) * 16 - shift <= end; };
    for (int first = lane; first * 16 < end; first += 32 * chunks) {
        uint4 low[chunks] = {}, high[chunks] = {};
#pragma unroll
        for (int j = 0; j < chunks; ++j)
            if (inside(first + 32 * j)) low[j] = aligned[first + 32 * j], high[j] = aligned[first + 32 * j + 1];
#pragma unroll
        for (int j = 0; j < chunks; ++j)
            if (inside(first + 32 * j)) reinterpret_cast<uint4*>(to)[first + 32 * j] = shifted(low[j], high[j], shift);
    }
    if (end_chunk >= 0 && end_chunk <= last) *reinterpret_cast<unsigned short*>(to + at) = static_cast<unsigned short>(ends);
}
