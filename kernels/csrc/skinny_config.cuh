// The -D interface of family skinny, on top of config.cuh. The weights are the operand with many rows, the
// thin operand has few; `wide` is the axis of D along the weights' rows.
//   WEIGHTS_A         1: the weights are A (N is small), 0: they are B (M is small)
//   MATH              0 fma, 1 mma
//   WARP_TILES        warp tiles of the weights: 16 rows each where their rows run along k, else 128 bytes
//   WARPS_WIDE, WARPS_K   warps of a block along the wide axis and along k
//   STEPS             k steps of a slot; a step is 64 bytes of k, or 16 k where rows do not run along k
//   SLOTS             slots of loads a warp has in flight; TILE_K is the k of one
//   MIN_BLOCKS        blocks per SM the register budget allows for
//   WEIGHT_CACHE      0 plain, 1 not in the L1, 2 first to leave the L2 besides
//   L2_FETCH          0, 128, 256: bytes the L2 fetches at least
//   PREFETCH          slots of every warp that the block brings into the L2 while the kernel before ends
//   RELEASE           the next kernel may start once all blocks of this one 0 have, 1 have issued their loads
//   ALIGN_WEIGHTS, ALIGN_THIN    bytes that divide row strides and addresses
#pragma once
#include "config.cuh"
#include "ptx/stream.cuh"

namespace cfg {
constexpr bool weights_are_a = WEIGHTS_A, mma = MATH == 1;
constexpr bool k_across = weights_are_a ? !a_transposed : b_transposed;      // rows of the weights run along k
constexpr bool thin_k_across = weights_are_a ? b_transposed : !a_transposed; // and of the thin operand
constexpr int tile_wide = weights_are_a ? tile_m : tile_n, tile_thin = weights_are_a ? tile_n : tile_m;
constexpr int warp_tiles = WARP_TILES, warps_wide = WARPS_WIDE, warps_k = WARPS_K, steps = STEPS, slots = SLOTS;
constexpr int min_blocks = MIN_BLOCKS;
constexpr int threads = 32 * warps_wide * warps_k;
constexpr int align_weights = ALIGN_WEIGHTS, align_thin = ALIGN_THIN;
constexpr StreamCache weight_cache = static_cast<StreamCache>(WEIGHT_CACHE);
constexpr int l2_fetch = L2_FETCH;
constexpr int prefetch = PREFETCH;
constexpr bool release_late = RELEASE;

constexpr int size = sizeof(In), lane_elements = 16 / size; // elements of a 16-byte chunk
constexpr int warp_tile = k_across ? 16 : 8 * lane_elements; // of the wide axis
constexpr int step_k = k_across ? 4 * lane_elements : 16;
constexpr int slot_distance = warps_k * tile_k;               // the warps along k take slots in turn
constexpr int chunks = warp_tiles * (k_across ? 2 : 4);       // a lane loads in a step
constexpr int thin_elements = k_across ? lane_elements : 4;   // of k, that a lane multiplies in a step
constexpr int thin_words = thin_elements * size / 4;
constexpr int thin_tiles = (tile_thin + 7) / 8;               // mma of 8 columns each
constexpr int thin_rows = mma ? thin_tiles : tile_thin;       // a lane reads
} // namespace cfg

static_assert(WEIGHTS_A == 0 || WEIGHTS_A == 1, "WEIGHTS_A is 0 or 1");
static_assert(MATH == 0 || MATH == 1, "MATH is 0 (fma) or 1 (mma)");
static_assert(WEIGHT_CACHE >= 0 && WEIGHT_CACHE <= 2, "WEIGHT_CACHE is 0, 1 or 2");
static_assert(cfg::l2_fetch == 0 || cfg::l2_fetch == 128 || cfg::l2_fetch == 256, "L2_FETCH is 0, 128 or 256");
static_assert(PREFETCH >= 0 && PREFETCH <= 16, "PREFETCH is in 0 .. 16");
static_assert(PREFETCH == 0 || cfg::align_weights == 16, "what is brought into the L2 is whole chunks of 16 bytes");
static_assert(RELEASE == 0 || RELEASE == 1, "RELEASE is 0 or 1");
static_assert(cfg::tile_wide == cfg::warp_tile * cfg::warp_tiles * cfg::warps_wide, "warp tiles fill the block's tile");
static_assert(cfg::tile_k == cfg::steps * cfg::step_k, "TILE_K is the k of a slot");
static_assert(cfg::tile_thin >= 1 && cfg::tile_thin <= 16, "the thin axis has 1 to 16 rows a tile");
static_assert(cfg::threads >= 32 && cfg::threads <= 1024, "a block has 1 to 32 warps");
static_assert(!cfg::mma || cfg::k_across || cfg::size == 2, "mma takes weights across k in 16-bit types only");
static_assert(!cfg::mma || cfg::size < 8, "mma is for types of up to 4 bytes");
static_assert(cfg::warps_k * cfg::tile_thin * (cfg::tile_wide + 4) * int(sizeof(Real)) <= 48 << 10,
              "the sums of all warps fit 48 KiB of shared memory");
