/* Every -D constant of host/kernel.c is read and checked here; kernels/host/family.py mirrors the checks.

   DOUBLE        0 float, 1 double                     A_TRANSPOSED  A is stored K x M
   HAS_BIAS      a bias row is added                   B_TRANSPOSED  B is stored N x K
   HAS_C         beta * C is added                     ACTIVATION    0 none, 1 relu, 2 gelu (tanh)
   MR, NV        register tile: MR rows of NV vectors  UNROLL        k steps per iteration of the inner loop
   MC, NC, KC    cache tile: rows, columns, depth      PREFETCH      k steps fetched ahead, 0 for none
   SNAKE         1: serpentine order of tiles and k    SWIZZLE       rows of tiles before a step across
   STREAM        panels that stream past the resident one in the cache tile: 0 those of A, 1 those of B */
#pragma once
#include <stdint.h>

#if !defined(DOUBLE) || !defined(A_TRANSPOSED) || !defined(B_TRANSPOSED) || !defined(HAS_C) || \
    !defined(HAS_BIAS) || !defined(ACTIVATION)
#error "define DOUBLE, A_TRANSPOSED, B_TRANSPOSED, HAS_C, HAS_BIAS and ACTIVATION"
#endif
#if !defined(MR) || !defined(NV) || !defined(MC) || !defined(NC) || !defined(KC) || !defined(UNROLL) || \
    !defined(PREFETCH) || !defined(SNAKE) || !defined(SWIZZLE) || !defined(STREAM)
#error "define MR, NV, MC, NC, KC, UNROLL, PREFETCH, SNAKE, SWIZZLE and STREAM"
#endif

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64, VECTOR_REGISTERS = 32 };
#elif defined(__AVX__)
enum { VECTOR_BYTES = 32, VECTOR_REGISTERS = 16 };
#elif defined(__aarch64__)
enum { VECTOR_BYTES = 16, VECTOR_REGISTERS = 32 };
#else
enum { VECTOR_BYTES = 16, VECTOR_REGISTERS = 16 };
#endif

#if DOUBLE
typedef double elem;
typedef int64_t elem_bits;
#else
typedef float elem;
typedef int32_t elem_bits;
#endif

enum {
    VL = VECTOR_BYTES / (int)sizeof(elem),
    NR = NV * VL,
    A_PANELS = (MC + MR - 1) / MR, /* a cache tile holds whole panels, so a little more than MC x NC */
    B_PANELS = (NC + NR - 1) / NR,
    UNROLL_STEPS = UNROLL, /* NOTE: #pragma GCC unroll takes constants, but expands no macros */
};

#define IS_FLAG(x) ((x) == 0 || (x) == 1)
#define IS_POWER_OF_TWO(x) ((x) > 0 && ((x) & ((x) - 1)) == 0)

_Static_assert(IS_FLAG(DOUBLE), "DOUBLE must be 0 or 1");
_Static_assert(IS_FLAG(A_TRANSPOSED) && IS_FLAG(B_TRANSPOSED), "A_ and B_TRANSPOSED must be 0 or 1");
_Static_assert(IS_FLAG(HAS_C) && IS_FLAG(HAS_BIAS), "HAS_C and HAS_BIAS must be 0 or 1");
_Static_assert(ACTIVATION >= 0 && ACTIVATION <= 2, "ACTIVATION must be 0, 1 or 2");
_Static_assert(MR >= 1 && MR <= 16, "MR must be in 1 .. 16");
_Static_assert(NV >= 1 && NV <= 4, "NV must be in 1 .. 4");
_Static_assert(MC % 16 == 0 && MC >= 16 && MC <= 1024, "MC must be a multiple of 16 in 16 .. 1024");
_Static_assert(NC % 16 == 0 && NC >= 16 && NC <= 4096, "NC must be a multiple of 16 in 16 .. 4096");
_Static_assert(KC % 16 == 0 && KC >= 16 && KC <= 1024, "KC must be a multiple of 16 in 16 .. 1024");
_Static_assert(IS_POWER_OF_TWO(UNROLL) && UNROLL <= 8, "UNROLL must be 1, 2, 4 or 8");
_Static_assert(PREFETCH == 0 || PREFETCH == 4 || PREFETCH == 8 || PREFETCH == 16,
               "PREFETCH must be 0, 4, 8 or 16");
_Static_assert(IS_FLAG(SNAKE), "SNAKE must be 0 or 1");
_Static_assert(IS_POWER_OF_TWO(SWIZZLE) && SWIZZLE <= 8, "SWIZZLE must be 1, 2, 4 or 8");
_Static_assert(IS_FLAG(STREAM), "STREAM must be 0 or 1");
_Static_assert(MR * NV + NV + 1 <= VECTOR_REGISTERS,
               "the register tile, a row of B and one element of A must fit the vector registers");
_Static_assert(2 * MR * NV >= VECTOR_REGISTERS,
               "a register tile below half of the vector registers cannot hide the latency of its FMAs");
_Static_assert((int64_t)MC * KC * (int)sizeof(elem) <= 2 << 20, "the packed A tile must not exceed 2 MiB");
_Static_assert((int64_t)NC * KC * (int)sizeof(elem) <= 8 << 20, "the packed B tile must not exceed 8 MiB");
