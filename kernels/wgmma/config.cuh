// The -D interface of family wgmma, on top of common/config.cuh.
//   WARPGROUPS        warpgroups of a CTA; each computes TILE_M / WARPGROUPS rows of the tile
//   STAGES            k tiles in shared memory
//   ACCUMULATE        0 f32, 1 f16
//   EPILOGUE          0 direct, 1 stmatrix and 16-byte stores
//   BOX_LINES         lines of 128 bytes of a TMA box; 0 for as many as the tile has
//   ARRIVALS          what releases a stage: 0 a lane of each warp, 1 all threads
#pragma once
#include "common/config.cuh"

namespace cfg {
constexpr int warpgroups = WARPGROUPS, stages = STAGES;
constexpr bool accumulate_f16 = ACCUMULATE, epilogue_smem = EPILOGUE;
constexpr int threads = 128 * warpgroups, warps = 4 * warpgroups;
constexpr int box_lines = BOX_LINES;
constexpr bool all_arrive = ARRIVALS;
constexpr int atoms = tile_m / 64 / warpgroups; // of 64 rows, of a warpgroup
constexpr int k_steps = tile_k / 16;
} // namespace cfg

template <class T> struct IsF16 { static constexpr bool value = false; };
template <> struct IsF16<f16> { static constexpr bool value = true; };

static_assert(sizeof(In) == 2, "wgmma multiplies f16 or bf16");
static_assert(cfg::warpgroups >= 1 && cfg::warpgroups <= 4, "WARPGROUPS is in 1 .. 4");
static_assert(cfg::tile_m % (64 * cfg::warpgroups) == 0 && cfg::tile_m <= 256,
              "the rows of a warpgroup are a multiple of 64, and a TMA box has at most 256 rows");
static_assert(cfg::tile_n % 16 == 0 && cfg::tile_n >= 16 && cfg::tile_n <= 256, "TILE_N is a multiple of 16 up to 256");
static_assert(cfg::b_transposed || cfg::tile_n % 64 == 0, "TILE_N is a multiple of 64 if B is stored K x N");
static_assert(cfg::tile_k == 64 || cfg::tile_k == 128, "TILE_K is 64 or 128");
static_assert(cfg::stages >= 2 && cfg::stages <= 8, "STAGES is in 2 .. 8");
static_assert(ACCUMULATE == 0 || ACCUMULATE == 1, "ACCUMULATE is 0 (f32) or 1 (f16)");
static_assert(!cfg::accumulate_f16 || IsF16<In>::value, "f16 accumulation needs f16 inputs");
static_assert(!cfg::epilogue_smem || sizeof(Out) == 2, "stmatrix stores 16-bit elements");
static_assert(cfg::box_lines == 0 || cfg::box_lines == 8, "BOX_LINES is 0 or 8");
static_assert(ARRIVALS == 0 || ARRIVALS == 1, "ARRIVALS is 0 (warps) or 1 (threads)");
static_assert(cfg::split_k == 1, "family wgmma does not split k");
