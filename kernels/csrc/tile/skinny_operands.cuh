// Global memory to registers for family skinny, laid out so that a lane's loads are its mma fragments. With
// g = lane / 4, t = lane % 4, in one step a lane holds
//   rows along k      16-byte chunk t of a 64-byte step, of rows g and g + 8 of each warp tile
//   rows across k     chunk g (of the wide axis) of the rows 4t .. 4t + 3 of a step of 16 k
// and of a thin row the same k. The order of k within a step is the lanes' own; both operands share it.
#pragma once
#include "skinny_config.cuh"

struct alignas(16) Chunk { unsigned word[4]; };
struct Thin { unsigned word[cfg::thin_words]; };

// The first `valid` of the elements from `from` on, zeros after them, in accesses of up to ALIGN bytes.
template <int ALIGN, int WORDS>
__device__ __forceinline__ void load_words(unsigned (&word)[WORDS], const In* from, int valid) {
    constexpr int piece = ALIGN < 4 * WORDS ? ALIGN : 4 * WORDS;
    const char* bytes = reinterpret_cast<const char*>(from);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) word[w] = 0;
#pragma unroll
    for (int at = 0; at < 4 * WORDS; at += piece) {
        if (at / cfg::size >= valid) continue;
        if constexpr (piece == 1) {
            word[at / 4] |= unsigned(*reinterpret_cast<const unsigned char*>(bytes + at)) << at % 4 * 8;
        } else if constexpr (piece == 2) {
            word[at / 4] |= unsigned(*reinterpret_cast<const unsigned short*>(bytes + at)) << at % 4 * 8;
        } else {
            struct alignas(piece) Piece { unsigned x[piece / 4]; };
            const Piece held = *reinterpret_cast<const Piece*>(bytes + at);
#pragma unroll
            for (int w = 0; w < piece / 4; ++w) word[at / 4 + w] = held.x[w];
        }
    }
}

// Element e of words.
__device__ __forceinline__ Real element(const unsigned* word, int e) {
    In x;
    memcpy(&x, reinterpret_cast<const char*>(word) + e * cfg::size, cfg::size);
    return Real(to_real(x));
}

// Brings the first PREFETCH slots of all warps of a block into the L2, row by row of the weights.
__device__ __forceinline__ void prefetch_weights(const In* matrix, long long ld, int wide0, int extent, int k0, int k_end) {
    const int depth = min(k_end - k0, cfg::prefetch * cfg::slot_distance), width = min(extent - wide0, cfg::tile_wide);
    const int rows = cfg::k_across ? width : depth, length = cfg::k_across ? depth : width;
    const In* const from = cfg::k_across ? matrix + wide0 * ld + k0 : matrix + k0 * ld + wide0;
    for (int row = threadIdx.x; row < rows; row += cfg::threads)
        l2_prefetch(from + row * ld, length * cfg::size / 16 * 16);
}

// The warp's share of the weights, slot by slot. What lies at or beyond the end of the block's share of k is zero.
// NOTE: pointers move along with the loads: offsets from a fixed one would each keep registers over the loop.
class Weights {
public:
    __device__ __forceinline__ Weights(const In* matrix, long long ld, int wide0, int extent, int k0, int k_end)
        : ld(ld), left(k_end - k0 - int(threadIdx.x % 4) * lane_k), policy(0) {
        const int g = threadIdx.x % 32 / 4, k = k0 + int(threadIdx.x % 4) * lane_k;
        if constexpr (cfg::weight_cache == StreamCache::evict_first) policy = evict_first_policy();
        if constexpr (cfg::k_across) {
            // NOTE: rows beyond the last repeat it; their sums are never stored.
#pragma unroll
            for (int i = 0; i < cfg::chunks; ++i) from[i] = matrix + min(wide0 + g + 8 * i, extent - 1) * ld + k;
        } else {
            const int column = wide0 + g * cfg::lane_elements;
            from[0] = matrix + k * ld + column;
            inside = extent - column;
        }
    }
    __device__ __forceinline__ void next(Chunk (&slot)[cfg::steps][cfg::chunks]) {
#pragma unroll
        for (int s = 0; s < cfg::steps; ++s) {
            const int left_of_step = left - s * cfg::step_k;
            if constexpr (cfg::k_across) {
#pragma unroll
                for (int i = 0; i < cfg::chunks; ++i) load_chunk(slot[s][i], from[i] + s * cfg::step_k, left_of_step);
            } else {
                next_rows(slot[s], left_of_step);
                from[0] += (s + 1 < cfg::steps ? 12 : 12 + cfg::slot_distance - cfg::tile_k) * ld;
            }
        }
        left -= cfg::slot_distance;
        if constexpr (cfg::k_across)
#pragma unroll
            for (int i = 0; i < cfg::chunks; ++i) from[i] += cfg::slot_distance;
    }

private:
    static constexpr int lane_k = cfg::k_across ? cfg::lane_elements : 4; // of k, that a lane holds in a step
    const In* from[cfg::k_across ? cfg::chunks : 1];
    long long ld;
    int inside; // elements from the first chunk to the end of its row, where rows do not run along k
    int left;   // of k, from the lane's first in the next slot
    unsigned long long policy;

    __device__ __forceinline__ void next_rows(Chunk (&x)[cfg::chunks], int rows) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
                load_chunk(x[i * 4 + j], from[0] + i * cfg::warp_tile, j < rows ? inside - i * cfg::warp_tile : 0);
            from[0] += ld;
        }
    }
    __device__ __forceinline__ void load_chunk(Chunk& x, const In* address, int valid) const {
        if constexpr (cfg::align_weights == 16) {
            x = {};
            Stream<cfg::weight_cache, cfg::l2_fetch>::load(x.word, address, valid > 0, policy);
        } else {
            load_words<cfg::align_weights>(x.word, address, valid);
        }
    }
};

// The thin operand from row thin0 on, step by step. Lanes that multiply by mma read row g of each 8, others all.
class ThinRows {
public:
    __device__ __forceinline__ ThinRows(const In* matrix, long long ld, int thin0, int extent, int k0, int k_end)
        : ld(ld), left(k_end - k0 - int(threadIdx.x % 4) * cfg::thin_elements) {
        const int k = k0 + int(threadIdx.x % 4) * cfg::thin_elements;
#pragma unroll
        for (int i = 0; i < cfg::thin_rows; ++i) {
            // NOTE: rows beyond the last repeat it; their sums are never stored.
            const int row = min(thin0 + (cfg::mma ? i * 8 + int(threadIdx.x) % 32 / 4 : i), extent - 1);
            from[i] = cfg::thin_k_across ? matrix + row * ld + k : matrix + k * ld + row;
        }
    }
    __device__ __forceinline__ void next(Thin (&x)[cfg::thin_rows]) {
#pragma unroll
        for (int i = 0; i < cfg::thin_rows; ++i) {
            if constexpr (cfg::thin_k_across)
                load_words<cfg::align_thin>(x[i].word, from[i], left);
            else
                gather(x[i], from[i]);
        }
        skip(cfg::step_k);
    }
    // From the end of one slot to the start of the next.
    __device__ __forceinline__ void next_slot() { skip(cfg::slot_distance - cfg::tile_k); }

private:
    const In* from[cfg::thin_rows];
    long long ld;
    int left; // of k, from the lane's first in the next step

    __device__ __forceinline__ void skip(int distance) {
        left -= distance;
#pragma unroll
        for (int i = 0; i < cfg::thin_rows; ++i) from[i] += cfg::thin_k_across ? distance : distance * ld;
    }
    __device__ __forceinline__ void gather(Thin& x, const In* address) const {
        In held[cfg::thin_elements];
#pragma unroll
        for (int e = 0; e < cfg::thin_elements; ++e, address += ld) held[e] = e < left ? *address : In{};
        memcpy(x.word, held, sizeof(held));
    }
};
