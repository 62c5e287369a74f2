// The -D interface of family wmma, on top of common/config.cuh.
//   WARPS_M, WARPS_N  warps of a CTA along each axis
//   STAGES            k tiles in shared memory; 1 loads synchronously
//   SMEM_LAYOUT       0 blocked, 1 padded: of the operand tiles and of the staged accumulators
//   SNAKE             1: serpentine order, odd rows of wmma tiles run backwards through n
//   ACCUMULATE        0 f32, 1 f16
//   COPY_A, COPY_B    bytes of a global access
#pragma once
#include "common/config.cuh"
#include "common/smem_tile.cuh"

namespace cfg {
constexpr int warps_m = WARPS_M, warps_n = WARPS_N;
constexpr int threads = 32 * warps_m * warps_n;
constexpr int stages = STAGES, copy_a = COPY_A, copy_b = COPY_B;
constexpr SmemLayout smem_layout = static_cast<SmemLayout>(SMEM_LAYOUT);
constexpr bool blocked = smem_layout == SmemLayout::blocked;
constexpr bool snake = SNAKE, accumulate_f16 = ACCUMULATE == 1;

constexpr int warp_m = tile_m / warps_m, warp_n = tile_n / warps_n;
constexpr int wmma_tiles_m = warp_m / 16, wmma_tiles_n = warp_n / 16;
constexpr int k_steps = tile_k / 16;
} // namespace cfg

template <class T> struct WmmaInput { static constexpr bool legal = false, accumulates_in_f16 = false; };
template <> struct WmmaInput<f16> { static constexpr bool legal = true, accumulates_in_f16 = true; };
template <> struct WmmaInput<bf16> { static constexpr bool legal = true, accumulates_in_f16 = false; };

static_assert(WmmaInput<In>::legal, "wmma multiplies f16 or bf16");
static_assert(cfg::tile_m % (16 * cfg::warps_m) == 0, "the rows of a warp are a multiple of 16");
static_assert(cfg::tile_n % (16 * cfg::warps_n) == 0, "the columns of a warp are a multiple of 16");
static_assert(cfg::tile_k % 16 == 0, "TILE_K is a multiple of 16");
static_assert(cfg::threads >= 32 && cfg::threads <= 1024, "a CTA has 1 to 32 warps");
static_assert(cfg::stages >= 1 && cfg::stages <= 6, "STAGES is in 1 .. 6");
static_assert(SMEM_LAYOUT == 0 || SMEM_LAYOUT == 1, "SMEM_LAYOUT is 0 (blocked) or 1 (padded): a fragment's rows are evenly spaced");
static_assert(ACCUMULATE == 0 || ACCUMULATE == 1, "ACCUMULATE is 0 or 1");
static_assert(!cfg::accumulate_f16 || WmmaInput<In>::accumulates_in_f16, "f16 accumulation needs f16 inputs");
