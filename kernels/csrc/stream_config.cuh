// The -D interface of family stream, on top of config.cuh. The weights are the operand with many rows, the thin
// operand has few; `wide` is the axis of D along the weights' rows. A panel is 128 bytes of k.
//   WEIGHTS_A         1: the weights are A (N is small), 0: they are B (M is small)
//   WARP_TILES        16 rows each of the weights: the wide extent of a tile, and the rows of a TMA box
//   WARPS             warps of a block that multiply, all along k; one more asks for the weights
//   PANELS            panels of a warp in a stage; TILE_K is the k of a stage: WARPS * PANELS panels
//   STAGES            stages of the ring
//   THIN_PANELS       panels of the thin operand that shared memory holds: the longest share of k
//   CLUSTER_K         blocks of a cluster, which share the k of a tile and what they finish of it
//   WEIGHT_HINT       how long the L2 keeps weights: 0 normal, 1 evict-first
//   PREFETCH          stages that the block brings into the L2 while the kernel before ends
#pragma once
#include "config.cuh"
#include "ptx/tma.cuh"

// The types of 8 and 16 bits whose mma takes 32 bytes of k.
template <class T> constexpr bool streams = false;
template <> constexpr bool streams<f16> = true;
template <> constexpr bool streams<bf16> = true;
template <> constexpr bool streams<e4m3> = true;
template <> constexpr bool streams<e5m2> = true;
template <> constexpr bool streams<s8> = true;
template <> constexpr bool streams<u8> = true;

namespace cfg {
constexpr bool weights_are_a = WEIGHTS_A;
constexpr int tile_wide = weights_are_a ? tile_m : tile_n, tile_thin = weights_are_a ? tile_n : tile_m;
constexpr int warp_tiles = WARP_TILES, warps = WARPS, panels = PANELS, stages = STAGES, thin_panels = THIN_PANELS;
constexpr int cluster_k = CLUSTER_K;
constexpr CacheHint hint = static_cast<CacheHint>(WEIGHT_HINT);
constexpr int prefetch = PREFETCH;
constexpr int threads = 32 * warps; // of those that multiply

constexpr int panel_bytes = 128, panel_k = panel_bytes / int(sizeof(In));
constexpr int stage_panels = warps * panels;
constexpr int thin_tiles = (tile_thin + 7) / 8; // mma of 8 columns each
// Of a tile, and of what a block finishes of it.
constexpr int elements = tile_wide * tile_thin, own_elements = elements / cluster_k;
} // namespace cfg

static_assert(streams<In>, "stream multiplies f16, bf16, e4m3, e5m2, s8 and u8");
static_assert(!cfg::a_transposed && cfg::b_transposed, "stream reads operands whose rows run along k");
static_assert(WEIGHTS_A == 0 || WEIGHTS_A == 1, "WEIGHTS_A is 0 or 1");
static_assert(cfg::warp_tiles == 1 || cfg::warp_tiles == 2, "WARP_TILES is 1 or 2");
static_assert(cfg::tile_wide == 16 * cfg::warp_tiles, "a tile is WARP_TILES x 16 rows of the weights");
static_assert(cfg::tile_thin >= 1 && cfg::tile_thin <= 16 && (cfg::tile_thin & (cfg::tile_thin - 1)) == 0,
              "the thin axis has 1, 2, 4, 8 or 16 rows a tile");
static_assert(cfg::warps == 4 || cfg::warps == 8 || cfg::warps == 16, "WARPS is 4, 8 or 16");
static_assert(cfg::panels == 1 || cfg::panels == 2 || cfg::panels == 4, "PANELS is 1, 2 or 4");
static_assert(cfg::tile_k == cfg::stage_panels * cfg::panel_k, "TILE_K is the k of a stage");
static_assert(cfg::stages >= 2 && cfg::stages <= 16, "STAGES is in 2 .. 16");
static_assert(cfg::thin_panels >= 1, "THIN_PANELS is at least 1");
static_assert(cfg::cluster_k >= 1 && cfg::cluster_k <= 8 && (cfg::cluster_k & (cfg::cluster_k - 1)) == 0,
              "CLUSTER_K is 1, 2, 4 or 8");
static_assert(cfg::cluster_k == 1 || cfg::split_k == 1, "a cluster adds up what its blocks have: there are no splits beside it");
static_assert(WEIGHT_HINT == 0 || WEIGHT_HINT == 1, "WEIGHT_HINT is 0 (normal) or 1 (evict first)");
static_assert(PREFETCH >= 0 && PREFETCH * PANELS <= 32, "a thread brings at most one box into the L2");
