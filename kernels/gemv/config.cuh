// The -D interface of family gemv, on top of common/config.cuh. The weights are the operand with many rows, the
// activations the one with few. An operand is K-major if its rows run along k.
//   WEIGHTS_A         1: the weights are A (N is small), 0: they are B (M is small)
//   MATH              0 fma, 1 mma
//   WARPS_K           warps of a CTA, all along k
//   STEPS             k steps of a stage; a step is 64 bytes of k if the weights are K-major, else 16 k
//   STAGES            stages that a warp has in flight or in registers; TILE_K is the k of one
//   MIN_CTAS_PER_SM   CTAs an SM must hold: the register budget
//   PREFETCH          stages of every warp that the CTA prefetches into the L2 while the previous kernel ends
//   RELEASE           the next kernel may start once all CTAs of this one have 0 started, 1 issued their loads
//   ALIGN_WEIGHTS, ALIGN_ACTIVATIONS    bytes that divide row strides and addresses
#pragma once
#include "common/config.cuh"
#include "common/ptx/load_store.cuh"

namespace cfg {
constexpr bool weights_are_a = WEIGHTS_A, mma = MATH == 1;
constexpr bool weights_k_major = weights_are_a ? !a_transposed : b_transposed;
constexpr bool activations_k_major = weights_are_a ? b_transposed : !a_transposed;
constexpr int weight_rows = weights_are_a ? tile_m : tile_n, activation_rows = weights_are_a ? tile_n : tile_m; // of a tile
constexpr int warps_k = WARPS_K, steps = STEPS, stages = STAGES;
constexpr int min_ctas_per_sm = MIN_CTAS_PER_SM;
constexpr int threads = 32 * warps_k;
constexpr int align_weights = ALIGN_WEIGHTS, align_activations = ALIGN_ACTIVATIONS;
constexpr int prefetch = PREFETCH;
constexpr bool release_late = RELEASE;

constexpr int size = sizeof(In), vector_elements = 16 / size;
constexpr int step_k = weights_k_major ? 4 * vector_elements : 16;
constexpr int stage_distance = warps_k * tile_k;              // the warps along k take stages in turn
constexpr int vectors = weights_k_major ? 2 : 4;              // 16-byte loads of a lane in a step
// Of a lane, in a step: elements of k of an activation row, and the same in words.
constexpr int activation_elements = weights_k_major ? vector_elements : 4;
constexpr int activation_words = activation_elements * size / 4;
constexpr int mma_columns = (activation_rows + 7) / 8;                   // mma tiles of 8 activation rows
constexpr int lane_rows = mma ? mma_columns : activation_rows;           // activation rows that a lane loads
} // namespace cfg

static_assert(WEIGHTS_A == 0 || WEIGHTS_A == 1, "WEIGHTS_A is 0 or 1");
static_assert(MATH == 0 || MATH == 1, "MATH is 0 (fma) or 1 (mma)");
static_assert(PREFETCH >= 0 && PREFETCH <= 16, "PREFETCH is in 0 .. 16");
static_assert(PREFETCH == 0 || cfg::align_weights == 16, "PREFETCH needs rows of whole 16 bytes");
static_assert(RELEASE == 0 || RELEASE == 1, "RELEASE is 0 or 1");
static_assert(cfg::weight_rows == (cfg::weights_k_major ? 16 : 8 * cfg::vector_elements),
              "a tile has 16 weight rows if K-major, else 128 bytes of rows");
static_assert(cfg::tile_k == cfg::steps * cfg::step_k, "TILE_K is the k of a stage");
static_assert(cfg::activation_rows >= 1 && cfg::activation_rows <= 16, "a tile has 1 to 16 activation rows");
static_assert(cfg::warps_k >= 1 && cfg::warps_k <= 16, "a CTA has 1 to 16 warps");
static_assert(!cfg::mma || cfg::weights_k_major || cfg::size == 2, "mma takes weights that are not K-major in 16-bit types only");
static_assert(!cfg::mma || cfg::size < 8, "mma is for types of up to 4 bytes");
static_assert(cfg::warps_k * cfg::activation_rows * (cfg::weight_rows + 4) * int(sizeof(ElementAccumulator)) <= 48 << 10,
              "the partials of all warps fit 48 KiB of shared memory");
