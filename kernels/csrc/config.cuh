// The -D interface that all CUDA families share: types, epilogue, raster, split-K. Each macro is
// turned into a constexpr here and nowhere else.
//   IN_TYPE             f16 | bf16 | tf32 | float | double | e4m3 | e5m2 | s8 | u8 | s4 | u4 | u1 | sign1
//   OUT_TYPE            f16 | bf16 | float | double | int (with integers)
//   A_TRANSPOSED, B_TRANSPOSED   1 where A is stored K x M, B N x K
//   TILE_M, TILE_N, TILE_K       block tile
//   RASTER              0 along m, 1 along n, 2 Hilbert      GROUP    tiles of a swizzle group, 1 for none
//   RASTER_SNAKE        1: every other group of tiles is walked backwards
//   SPLIT_K             blocks that share a tile    ALIGN_D  bytes that divide D's row stride and address
//   ACTIVATION          0 none, 1 relu, 2 gelu      HAS_BIAS, HAS_C   0 | 1
#pragma once
#include "ptx/convert.cuh"

using In = IN_TYPE;
using Out = OUT_TYPE;

template <class T> struct RealOf { using type = float; };
template <> struct RealOf<double> { using type = double; };
template <> struct RealOf<s8> { using type = int; };
template <> struct RealOf<u8> { using type = int; };
template <> struct RealOf<s4> { using type = int; };
template <> struct RealOf<u4> { using type = int; };
template <> struct RealOf<u1> { using type = int; };
template <> struct RealOf<sign1> { using type = int; };
using Real = RealOf<In>::type; // accumulators, alpha, beta

namespace cfg {
constexpr bool a_transposed = A_TRANSPOSED, b_transposed = B_TRANSPOSED;
constexpr int tile_m = TILE_M, tile_n = TILE_N, tile_k = TILE_K;
constexpr bool raster_snake = RASTER_SNAKE;
constexpr int raster = RASTER, group = GROUP, split_k = SPLIT_K;
constexpr int align_d = ALIGN_D, activation = ACTIVATION;
constexpr bool has_bias = HAS_BIAS, has_c = HAS_C;
} // namespace cfg

static_assert(cfg::raster >= 0 && cfg::raster <= 2, "RASTER is 0 (along m), 1 (along n) or 2 (Hilbert)");
static_assert(cfg::group >= 1, "GROUP is at least 1");
static_assert(cfg::raster != 2 || (cfg::group & (cfg::group - 1)) == 0, "a Hilbert curve fills squares of a power of two");
static_assert(RASTER_SNAKE == 0 || RASTER_SNAKE == 1, "RASTER_SNAKE is 0 or 1");
static_assert(cfg::split_k >= 1 && cfg::split_k <= 32, "SPLIT_K is in 1 .. 32");
static_assert(cfg::align_d >= int(sizeof(Out)) && cfg::align_d <= 16, "ALIGN_D is a power of two from the element size to 16");
static_assert(cfg::activation >= 0 && cfg::activation <= 2, "ACTIVATION is 0, 1 or 2");

// What every kernel receives, in this order.
#define GEMM_PARAMETERS                                                                                       \
    const In *__restrict__ a, const In *__restrict__ b, const Out *__restrict__ c, Out *__restrict__ d,       \
        const Out *__restrict__ bias, void *__restrict__ workspace, int m, int n, int k, long long lda,       \
        long long ldb, long long ldc, long long ldd, long long stride_a, long long stride_b,                  \
        long long stride_c, long long stride_d, Real alpha, Real beta
