// The -D interface of family mma_sync, on top of common/config.cuh.
//   WARPS_M, WARPS_N, WARPS_K   warps of a CTA along each axis; WARPS_K > 1 slices every k tile
//   STAGES            k tiles in shared memory; 1 loads synchronously
//   MMA_K             8 | 16: m16n8k8 or m16n8k16; types that are not 16 bits wide take 16, which is
//                     their mma over 32 bytes of k (m16n8k8 of tf32, m16n8k32, k64 and k256 of 8, 4 and 1
//                     bit, m16n8k4 of double)
//   FRAGMENT_LOAD     0 direct loads, 1 ldmatrix, 2 mixed (A direct, B ldmatrix), 3 ldmatrix before every mma of A, and of B
//                     stored N x K: fewer registers, more shared-memory traffic, 4 ldmatrix; in 3 and 4 B stored N x K by an
//                     x2 for each column of mma tiles, elsewhere by an x4 for two; tf32 stored K x M or K x N is always loaded
//                     directly
//   SMEM_LAYOUT       0 blocked, 1 padded, 2 xor, 3 permuted, 4 plain, where neighbouring threads copy neighbouring accesses of
//                     a row; elsewhere a thread copies 16 bytes of a row
//   COPY_STEP         the k step before which the copies of a stage are issued, unless DOUBLE_BUFFER
//   DOUBLE_BUFFER     1: fragments of the next k step are loaded while this one multiplies
//   SNAKE             1: serpentine order, odd rows of mma tiles run backwards through n
//   ACCUMULATE        0 in the mma (float, int or double), 1 f16, 2 float added outside the mma
//   EPILOGUE          0 direct, 1 through permuted shared memory
//   COPY_A, COPY_B    widest global access in bytes
//   REPACK_A, REPACK_B   1: the operand is a copy whose rows are multiples of 16 bytes, written by a launch before
//   MIN_CTAS_PER_SM   CTAs that an SM must hold: the register budget
#pragma once
#include "common/config.cuh"
#include "common/smem_tile.cuh"

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;

namespace cfg {
constexpr int warps_m = WARPS_M, warps_n = WARPS_N, warps_k = WARPS_K;
constexpr int threads = 32 * warps_m * warps_n * warps_k;
constexpr int stages = STAGES, mma_k = MMA_K, copy_a = COPY_A, copy_b = COPY_B;
constexpr SmemLayout smem_layout = static_cast<SmemLayout>(SMEM_LAYOUT);
constexpr int size = sizeof(In), step_k = 32 / size * Packing<In>::value; // k of a step: 32 bytes of a row
constexpr int chunk_k = 16 / size * Packing<In>::value; // k of 16 bytes
constexpr bool repacks_k = (REPACK_A && !a_transposed) || (REPACK_B && b_transposed);
constexpr bool ldmatrix_a = (FRAGMENT_LOAD == 1 || FRAGMENT_LOAD >= 3) && (!a_transposed || size == 2), reload_a = FRAGMENT_LOAD == 3;
constexpr bool ldmatrix_b = FRAGMENT_LOAD != 0 && (b_transposed || size == 2), b_by_x2 = FRAGMENT_LOAD >= 3 && b_transposed;
constexpr int copy_step = COPY_STEP;
// Of tf32 with rows of k, A is loaded two rows of D at a time. In the XOR layout few registers hold all addresses.
constexpr bool pairs_m = size == 4 && a_transposed, words_keep = size == 4 && smem_layout == SmemLayout::xor_;
constexpr bool keeps_addresses = (ldmatrix_a || (words_keep && a_transposed)) && (ldmatrix_b || (words_keep && !b_transposed));
// NOTE: there a warp loads 4 rows by 8 elements, two chunks of each: those of the next row are two further.
template <bool K_MAJOR> constexpr int shift = size == 4 && !K_MAJOR ? 2 : 1;
constexpr int thread_bytes_a = smem_layout == SmemLayout::plain ? copy_a : 16, thread_bytes_b = smem_layout == SmemLayout::plain ? copy_b : 16;
constexpr bool double_buffer = DOUBLE_BUFFER, snake = SNAKE, epilogue_smem = EPILOGUE;
constexpr bool accumulate_f16 = ACCUMULATE == 1, accumulate_outside = ACCUMULATE == 2;
constexpr bool counts_signs = is_same<In, sign1>; // the mma counts products that are -1

constexpr int warp_m = tile_m / warps_m, warp_n = tile_n / warps_n;
constexpr int mma_tiles_m = warp_m / 16, mma_tiles_n = warp_n / 8;
constexpr int k_steps = tile_k / step_k / warps_k; // of one warp in one k tile
} // namespace cfg

static_assert((!cfg::a_transposed && cfg::b_transposed) || cfg::size > 1, "types of 8 bits and fewer are read in layout nt: ldmatrix transposes 16-bit elements only");
static_assert(cfg::size < 8 || FRAGMENT_LOAD == 0, "double needs direct fragment loads: ldmatrix distributes 4-byte words");
static_assert((!cfg::a_transposed && cfg::b_transposed) || cfg::size != 4 || FRAGMENT_LOAD != 2, "FRAGMENT_LOAD mixed repeats another value if ldmatrix cannot load A or B");
static_assert(cfg::mma_k == 16 || cfg::size == 2, "MMA_K 8 is for 16-bit types");
static_assert(cfg::tile_m % (16 * cfg::warps_m) == 0, "the rows of a warp are a multiple of 16");
static_assert(cfg::tile_n % (8 * cfg::warps_n) == 0, "the columns of a warp are a multiple of 8");
static_assert(cfg::tile_k % (cfg::step_k * cfg::warps_k) == 0, "the k of a warp in a stage is a multiple of 32 bytes");
static_assert(bytes_of<In>(cfg::tile_k) <= 1024, "a row of TILE_K is at most 1024 bytes");
static_assert(cfg::tile_n % 16 == 0 || cfg::tile_n == 8, "TILE_N is 8 or a multiple of 16");
static_assert(cfg::threads >= 32 && cfg::threads <= 1024, "a CTA has 1 to 32 warps");
static_assert(cfg::stages >= 1 && cfg::stages <= 6, "STAGES is in 1 .. 6");
static_assert((!REPACK_A || cfg::copy_a == 16) && (!REPACK_B || cfg::copy_b == 16), "a repacked operand is copied 16 bytes at a time");
static_assert(cfg::mma_k == 8 || cfg::mma_k == 16, "MMA_K is 8 or 16");
static_assert(FRAGMENT_LOAD >= 0 && FRAGMENT_LOAD <= 4, "FRAGMENT_LOAD is 0 .. 4");
static_assert(FRAGMENT_LOAD != 4 || cfg::b_transposed, "FRAGMENT_LOAD ldmatrix_x2 repeats another value for B stored K x N");
static_assert(cfg::copy_step == 0 || (cfg::stages > 1 && !cfg::double_buffer && cfg::copy_step < cfg::k_steps), "COPY_STEP is a k step of a stage, of several stages without DOUBLE_BUFFER");
static_assert(SMEM_LAYOUT >= 0 && SMEM_LAYOUT <= 4, "SMEM_LAYOUT is 0 .. 4");
static_assert(ACCUMULATE >= 0 && ACCUMULATE <= 2, "ACCUMULATE is 0, 1 or 2");
static_assert(!cfg::double_buffer || (cfg::stages >= 2 && cfg::k_steps % 2 == 0),
              "fragment double buffering needs two stages and an even number of k steps");
static_assert(!cfg::reload_a || !cfg::double_buffer, "reloading A leaves nothing to double-buffer");
static_assert(!cfg::accumulate_f16 || is_same<In, f16>, "f16 accumulation needs f16 inputs");
static_assert(!cfg::accumulate_outside || sizeof(ElementAccumulator) == 4, "accumulation outside the mma is for float accumulators");
