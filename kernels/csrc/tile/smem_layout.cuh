// Shared-memory tiles in 16-byte chunks. A tile has ROWS rows of ROW_BYTES; chunk(row, c) is the byte
// offset of chunk c of a row:
//   blocked   16 x 16 blocks of 16-bit elements, block after block
//   padded    rows one chunk longer than their data
//   xor       chunk index XOR row (crosswise)
//   permuted  chunk index rotated by row
// With G = gcd(chunks of a row, 8), 8 / G rows span all 32 banks, so xor and permuted change the chunk
// every 8 / G rows: the eight rows of an ldmatrix phase then fall on different banks. Mirrored by
// kernels/smem_layout.py.
#pragma once

enum class SmemLayout { blocked = 0, padded = 1, xor_ = 2, permuted = 3 };

template <int ROWS, int ROW_BYTES, SmemLayout LAYOUT> struct SmemTile {
    static constexpr int chunks = ROW_BYTES / 16;
    static constexpr int span = chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
    static constexpr int period = 8 / span;
    static constexpr int stride = ROW_BYTES + (LAYOUT == SmemLayout::padded ? 16 : 0);
    static constexpr int bytes = ROWS * stride;
    static_assert(ROW_BYTES % 16 == 0, "a row is a whole number of 16-byte chunks");
    static_assert(LAYOUT != SmemLayout::blocked || (ROWS % 16 == 0 && chunks % 2 == 0), "blocked needs 16 x 16 blocks");

    static __device__ __forceinline__ constexpr int chunk(int row, int c) {
        if constexpr (LAYOUT == SmemLayout::blocked)
            return (row / 16 * (chunks / 2) + c / 2) * 512 + row % 16 * 32 + c % 2 * 16;
        else if constexpr (LAYOUT == SmemLayout::xor_)
            return row * stride + (c ^ (row / period % span)) * 16;
        else if constexpr (LAYOUT == SmemLayout::permuted)
            return row * stride + (c + row / period % span) % chunks * 16;
        else
            return row * stride + c * 16;
    }

    // chunk(base + row, c) for a base that is a multiple of 8 (16 if blocked) and row below that: all
    // layouts repeat there, so the compiler can keep `base` out of the address arithmetic of a lane.
    static __device__ __forceinline__ constexpr int chunk_from(int base, int row, int c) {
        if constexpr (LAYOUT == SmemLayout::blocked)
            return chunk(base + row, c);
        else
            return base * stride + chunk(row, c);
    }
};
