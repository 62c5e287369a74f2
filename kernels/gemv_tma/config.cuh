// The -D interface of family gemv_tma, on top of common/config.cuh. The weights are the operand with many rows, the
// activations the one with few. A k chunk is 128 bytes of k, the width of a TMA box.
//   WEIGHTS_A            1: the weights are A (N is small), 0: they are B (M is small)
//   WARP_TILES           weight rows of a tile, in units of 16; also the rows of a TMA box
//   WARPS                warps of a CTA that multiply, all along k; one more loads the weights
//   K_CHUNKS             k chunks that each warp multiplies in a stage; TILE_K is the k of a stage: WARPS * K_CHUNKS chunks
//   STAGES               stages of the ring
//   ACTIVATION_K_CHUNKS  k chunks of the activations that shared memory holds: the longest k partition
//   CLUSTER_K            CTAs of a cluster, which partition the k of a tile and its final reduction
//   PREFETCH             stages that the CTA prefetches into the L2 while the previous kernel ends
#pragma once
#include "common/config.cuh"
#include "common/ptx/tma.cuh"

// The types of 8 and 16 bits whose mma takes 32 bytes of k.
template <class T> constexpr bool supported = false;
template <> constexpr bool supported<f16> = true;
template <> constexpr bool supported<bf16> = true;
template <> constexpr bool supported<e4m3> = true;
template <> constexpr bool supported<e5m2> = true;
template <> constexpr bool supported<s8> = true;
template <> constexpr bool supported<u8> = true;

namespace cfg {
constexpr bool weights_are_a = WEIGHTS_A;
constexpr int weight_rows = weights_are_a ? tile_m : tile_n, activation_rows = weights_are_a ? tile_n : tile_m; // of a tile
constexpr int warp_tiles = WARP_TILES, warps = WARPS, k_chunks = K_CHUNKS, stages = STAGES;
constexpr int activation_k_chunks = ACTIVATION_K_CHUNKS;
constexpr int cluster_k = CLUSTER_K;
constexpr int prefetch = PREFETCH;
constexpr int threads = 32 * warps; // that multiply

constexpr int chunk_bytes = 128, chunk_k = chunk_bytes / int(sizeof(In)); // of a k chunk
constexpr int stage_chunks = warps * k_chunks;
constexpr int mma_columns = (activation_rows + 7) / 8; // mma tiles of 8 activation rows
// Elements of a tile of D, and of the part that one CTA of the cluster reduces and stores.
constexpr int elements = weight_rows * activation_rows, own_elements = elements / cluster_k;
} // namespace cfg

static_assert(cfg::split_k == 1, "family gemv_tma does not split k");
static_assert(supported<In>, "gemv_tma multiplies f16, bf16, e4m3, e5m2, s8 and u8");
static_assert(!cfg::a_transposed && cfg::b_transposed, "gemv_tma reads operands whose rows run along k");
static_assert(WEIGHTS_A == 0 || WEIGHTS_A == 1, "WEIGHTS_A is 0 or 1");
static_assert(cfg::warp_tiles == 1 || cfg::warp_tiles == 2, "WARP_TILES is 1 or 2");
static_assert(cfg::weight_rows == 16 * cfg::warp_tiles, "a tile has WARP_TILES x 16 weight rows");
static_assert(cfg::activation_rows >= 1 && cfg::activation_rows <= 16 && (cfg::activation_rows & (cfg::activation_rows - 1)) == 0,
              "a tile has 1, 2, 4, 8 or 16 activation rows");
static_assert(cfg::warps == 4 || cfg::warps == 8 || cfg::warps == 16, "WARPS is 4, 8 or 16");
static_assert(cfg::k_chunks == 1 || cfg::k_chunks == 2 || cfg::k_chunks == 4, "K_CHUNKS is 1, 2 or 4");
static_assert(cfg::tile_k == cfg::stage_chunks * cfg::chunk_k, "TILE_K is the k of a stage");
static_assert(cfg::stages >= 2 && cfg::stages <= 16, "STAGES is in 2 .. 16");
static_assert(cfg::activation_k_chunks >= 1, "ACTIVATION_K_CHUNKS is at least 1");
static_assert(cfg::cluster_k >= 1 && cfg::cluster_k <= 8 && (cfg::cluster_k & (cfg::cluster_k - 1)) == 0,
              "CLUSTER_K is 1, 2, 4 or 8");
static_assert(PREFETCH >= 0 && PREFETCH * K_CHUNKS <= 32, "a thread prefetches at most one box into the L2");
