// Global memory to registers, laid out so that a lane's loads are its mma fragments. With g = lane / 4 and t = lane % 4,
// a lane holds in one step
//   weights K-major    16-byte vector t of a 64-byte step, of rows g and g + 8
//   else               vector g of the weight rows, at 4t .. 4t + 3 of a step of 16 k
// and the same k of the activations. Both operands permute k within a step alike, which leaves the products unchanged.
#pragma once
#include "gemv/config.cuh"

struct alignas(16) Vector { unsigned word[4]; };
struct ActivationVector { unsigned word[cfg::activation_words]; };

// Loads the first `valid` elements at `from`, and zeros after them, in accesses of up to ALIGN bytes.
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

__device__ __forceinline__ ElementAccumulator element(const unsigned* word, int e) {
    In x;
    memcpy(&x, reinterpret_cast<const char*>(word) + e * cfg::size, cfg::size);
    return ElementAccumulator(to_accumulator(x));
}

// Prefetches the first PREFETCH stages of all warps of a CTA into the L2, one row of memory a thread.
__device__ __forceinline__ void prefetch_weights(const In* matrix, long long ld, int row0, int extent, int k0, int k_end) {
    const int depth = min(k_end - k0, cfg::prefetch * cfg::stage_distance), width = min(extent - row0, cfg::weight_rows);
    const int rows = cfg::weights_k_major ? width : depth, length = cfg::weights_k_major ? depth : width;
    const In* const from = cfg::weights_k_major ? matrix + row0 * ld + k0 : matrix + k0 * ld + row0;
    for (int row = threadIdx.x; row < rows; row += cfg::threads)
        l2_prefetch(from + row * ld, length * cfg::size / 16 * 16);
}

// Loads a warp's weights, stage by stage. Elements at or beyond the end of the CTA's split of k are zero.
// NOTE: the pointers advance with the loads; offsets from fixed pointers would keep more registers over the loop.
class Weights {
public:
    __device__ __forceinline__ Weights(const In* matrix, long long ld, int row0, int extent, int k0, int k_end)
        : ld(ld), left(k_end - k0 - int(threadIdx.x % 4) * lane_k) {
        const int g = threadIdx.x % 32 / 4, k = k0 + int(threadIdx.x % 4) * lane_k;
        if constexpr (cfg::weights_k_major) {
            // NOTE: rows beyond the last one repeat it; their products are never stored.
#pragma unroll
            for (int i = 0; i < cfg::vectors; ++i) from[i] = matrix + min(row0 + g + 8 * i, extent - 1) * ld + k;
        } else {
            const int column = row0 + g * cfg::vector_elements;
            from[0] = matrix + k * ld + column;
            inside = extent - column;
        }
    }
    __device__ __forceinline__ void next(Vector (&stage)[cfg::steps][cfg::vectors]) {
#pragma unroll
        for (int s = 0; s < cfg::steps; ++s) {
            const int left_of_step = left - s * cfg::step_k;
            if constexpr (cfg::weights_k_major) {
#pragma unroll
                for (int i = 0; i < cfg::vectors; ++i) load_vector(stage[s][i], from[i] + s * cfg::step_k, left_of_step);
            } else {
                next_rows(stage[s], left_of_step);
                from[0] += (s + 1 < cfg::steps ? 12 : 12 + cfg::stage_distance - cfg::tile_k) * ld;
            }
        }
        left -= cfg::stage_distance;
        if constexpr (cfg::weights_k_major)
#pragma unroll
            for (int i = 0; i < cfg::vectors; ++i) from[i] += cfg::stage_distance;
    }

private:
    static constexpr int lane_k = cfg::weights_k_major ? cfg::vector_elements : 4; // k of a lane in a step
    const In* from[cfg::weights_k_major ? cfg::vectors : 1];
    long long ld;
    int inside; // elements from the lane's first vector to the end of the row; unused if K-major
    int left;   // k from the lane's first element of the next stage to the end of the split

    __device__ __forceinline__ void next_rows(Vector (&x)[cfg::vectors], int rows) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            load_vector(x[j], from[0], j < rows ? inside : 0);
            from[0] += ld;
        }
    }
    __device__ __forceinline__ void load_vector(Vector& x, const In* address, int valid) const {
        if constexpr (cfg::align_weights == 16) {
            x = {};
            load_global_128_once(x.word, address, valid > 0);
        } else {
            load_words<cfg::align_weights>(x.word, address, valid);
        }
    }
};

// Loads the activations from row `row0` on, step by step. With mma a lane loads row g of each 8, else every row.
class Activations {
public:
    __device__ __forceinline__ Activations(const In* matrix, long long ld, int row0, int extent, int k0, int k_end)
        : ld(ld), left(k_end - k0 - int(threadIdx.x % 4) * cfg::activation_elements) {
        const int k = k0 + int(threadIdx.x % 4) * cfg::activation_elements;
#pragma unroll
        for (int i = 0; i < cfg::lane_rows; ++i) {
            // NOTE: rows beyond the last one repeat it; their products are never stored.
            const int row = min(row0 + (cfg::mma ? i * 8 + int(threadIdx.x) % 32 / 4 : i), extent - 1);
            from[i] = cfg::activations_k_major ? matrix + row * ld + k : matrix + k * ld + row;
        }
    }
    __device__ __forceinline__ void next(ActivationVector (&x)[cfg::lane_rows]) {
#pragma unroll
        for (int i = 0; i < cfg::lane_rows; ++i) {
            if constexpr (cfg::activations_k_major)
                load_words<cfg::align_activations>(x[i].word, from[i], left);
            else
                gather(x[i], from[i]);
        }
        skip(cfg::step_k);
    }
    // Skips from the end of one stage to the start of the next.
    __device__ __forceinline__ void next_stage() { skip(cfg::stage_distance - cfg::tile_k); }

private:
    const In* from[cfg::lane_rows];
    long long ld;
    int left; // k from the lane's first element of the next step to the end of the split

    __device__ __forceinline__ void skip(int distance) {
        left -= distance;
#pragma unroll
        for (int i = 0; i < cfg::lane_rows; ++i) from[i] += cfg::activations_k_major ? distance : distance * ld;
    }
    __device__ __forceinline__ void gather(ActivationVector& x, const In* address) const {
        In held[cfg::activation_elements];
#pragma unroll
        for (int e = 0; e < cfg::activation_elements; ++e, address += ld) held[e] = e < left ? *address : In{};
        memcpy(x.word, held, sizeof(held));
    }
};
