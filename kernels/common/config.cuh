// The -D interface of all CUDA families: types, epilogue, raster, split-K. Only this file turns these macros into
// constexprs.
//   IN_TYPE             f16 | bf16 | tf32 | float | double | e4m3 | e5m2 | s8 | u8 | s4 | u4 | u1 | sign1
//   OUT_TYPE            f16 | bf16 | float | double | int (with integers)
//   A_TRANSPOSED, B_TRANSPOSED   1 if A is stored K x M, B N x K
//   TILE_M, TILE_N, TILE_K       the tile of a CTA
//   RASTER              0 along m, 1 along n
//   SWIZZLE_SIZE        tiles along the raster axis before a step across
//   RASTER_SNAKE        1: serpentine raster, every other run across goes backwards
//   SPLIT_K             CTAs that split the k of a tile
//   ALIGN_D             bytes that divide D's row stride and address
//   ACTIVATION          0 none, 1 relu, 2 gelu      HAS_BIAS, HAS_C   0 | 1
#pragma once
#include "common/ptx/convert.cuh"

using In = IN_TYPE;
using Out = OUT_TYPE;

template <class T> struct AccumulatorOf { using type = float; };
template <> struct AccumulatorOf<double> { using type = double; };
template <> struct AccumulatorOf<s8> { using type = int; };
template <> struct AccumulatorOf<u8> { using type = int; };
template <> struct AccumulatorOf<s4> { using type = int; };
template <> struct AccumulatorOf<u4> { using type = int; };
template <> struct AccumulatorOf<u1> { using type = int; };
template <> struct AccumulatorOf<sign1> { using type = int; };
using ElementAccumulator = AccumulatorOf<In>::type; // accumulators, alpha, beta

namespace cfg {
constexpr bool a_transposed = A_TRANSPOSED, b_transposed = B_TRANSPOSED;
constexpr int tile_m = TILE_M, tile_n = TILE_N, tile_k = TILE_K;
constexpr bool raster_snake = RASTER_SNAKE;
constexpr int raster = RASTER, swizzle_size = SWIZZLE_SIZE, split_k = SPLIT_K;
constexpr int align_d = ALIGN_D, activation = ACTIVATION;
constexpr bool has_bias = HAS_BIAS, has_c = HAS_C;
} // namespace cfg

static_assert(cfg::raster == 0 || cfg::raster == 1, "RASTER is 0 (along m) or 1 (along n)");
static_assert(cfg::swizzle_size >= 1, "SWIZZLE_SIZE is at least 1");
static_assert(RASTER_SNAKE == 0 || RASTER_SNAKE == 1, "RASTER_SNAKE is 0 or 1");
static_assert(cfg::split_k >= 1 && cfg::split_k <= 32, "SPLIT_K is in 1 .. 32");
static_assert(cfg::align_d >= int(sizeof(Out)) && cfg::align_d <= 16, "ALIGN_D is a power of two from the element size to 16");
static_assert(cfg::activation >= 0 && cfg::activation <= 2, "ACTIVATION is 0, 1 or 2");

// The parameters that every kernel has, in this order. NOTE: operands are not __restrict__. D may be C; and loads through const
// __restrict__ are ld.global.nc, which assume that nothing writes the data while this kernel runs, as the kernel before may
// do until griddepcontrol.wait. Of the workspace it is true, and wgmma_ws needs it to keep its wgmma in flight.
#define GEMM_PARAMETERS                                                                                       \
    const In *a, const In *b, const Out *c, Out *d, const Out *bias, void *__restrict__ workspace, int m, int n, int k,  \
        long long lda, long long ldb, long long ldc, long long ldd, long long stride_a, long long stride_b,   \
        long long stride_c, long long stride_d, ElementAccumulator alpha, ElementAccumulator beta
