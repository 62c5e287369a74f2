/* D = act(alpha * op(A) op(B) + beta * C + bias) on the CPU, float or double, any m, n, k, batch >= 1.

   The idea (Goto): copy a tile of A and a tile of B into panels that the inner loop reads in order, keep
   them in the caches, and keep a small tile of D in vector registers over the whole depth of the tiles.

     D          tiles of MC x NC (rounded up to whole panels); each thread takes a run of tiles in raster
                order, SWIZZLE rows of tiles before a step to the next column; SNAKE reverses the direction
                at each end, so that the packed tile of a neighbour is used again
     k          passes of at most KC; D holds the partials between passes, divided by a power of two if alpha
                is large, so that they overflow only if the product itself does; not where D is C as well
     cache tile panels of MR rows of A, of NR = NV vectors of columns of B; one panel stays in L1 while the
                panels of the other operand stream past it from L2 (STREAM)
     registers  MR x NV vectors of D, one row of B, one element of A

   Each thread calls the entry with its own index and writes tiles of D of its own. The workspace holds for
   each thread one packed tile of A and one of B (plus 64 bytes for alignment in all). C may be D; no other
   operand may overlap D. Not supported: half precision, splitting k over threads, reading operands without
   packing them (which a matrix-vector product would want).

   cc -O3 -std=gnu11 -march=x86-64-v3 -shared -fPIC -DDOUBLE=0 -DA_TRANSPOSED=0 -DB_TRANSPOSED=1 -DHAS_C=0
      -DHAS_BIAS=0 -DACTIVATION=0 -DMR=6 -DNV=2 -DMC=192 -DNC=1024 -DKC=256 -DUNROLL=4 -DPREFETCH=0 -DSNAKE=1
      -DSWIZZLE=1 -DSTREAM=0 host/kernel.c */
#include "host/config.h"
#include "host/epilogue.h"
#include "host/pack.h"

struct gemm {
    const elem *a, *b, *c, *bias;
    elem *d;
    int64_t m, n, k, batch, lda, ldb, ldc, ldd;
    elem alpha, beta, scale; /* D = act(scale * alpha * op(A) op(B) + beta * C + bias) */
};

struct range { int64_t begin, end; };
struct tile { int64_t item; struct range rows, columns; };

/* A pass over k of one tile; `first` starts the accumulation, `last` finishes it. */
struct pass { struct range k; int first, last; };

/* The tiles that a thread has packed, which the next tile may use again. */
struct packed {
    elem *a, *b;
    int64_t a_item, a_row, a_k, b_item, b_column, b_k;
};

static inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

/* Part `index` of `parts` even parts of `extent`, cut at multiples of `grain`. */
static inline struct range part(int64_t extent, int64_t grain, int64_t parts, int64_t index)
{
    const int64_t grains = ceil_div(extent, grain), end = grains * (index + 1) / parts * grain;
    return (struct range){grains * index / parts * grain, end < extent ? end : extent};
}

static inline int64_t tile_rows(const struct gemm *g) { return ceil_div(ceil_div(g->m, MR), A_PANELS); }
static inline int64_t tile_columns(const struct gemm *g) { return ceil_div(ceil_div(g->n, NR), B_PANELS); }

/* The tile with number `index` in raster order. */
static struct tile tile_at(const struct gemm *g, int64_t index)
{
    const int64_t rows = tile_rows(g), columns = tile_columns(g), inside = index % (rows * columns);
    const int64_t strip = inside / (SWIZZLE * columns), top = strip * SWIZZLE;
    const int64_t height = rows - top < SWIZZLE ? rows - top : SWIZZLE, step = inside - top * columns;
    int64_t column = step / height, row = step % height;
    if (SNAKE && column % 2) row = height - 1 - row;
    if (SNAKE && strip % 2) column = columns - 1 - column;
    const struct range y = part(g->m, MR, rows, top + row), x = part(g->n, NR, columns, column);
    return (struct tile){index / (rows * columns), y, x};
}

static void pack_a(const struct gemm *g, const struct tile *t, struct range k, struct packed *packed)
{
    if (packed->a_item == t->item && packed->a_row == t->rows.begin && packed->a_k == k.begin) return;
    packed->a_item = t->item, packed->a_row = t->rows.begin, packed->a_k = k.begin;
    const elem *a = g->a + t->item * (A_TRANSPOSED ? g->k : g->m) * g->lda;
    a += A_TRANSPOSED ? k.begin * g->lda + t->rows.begin : t->rows.begin * g->lda + k.begin;
    pack(a, g->lda, !A_TRANSPOSED, t->rows.end - t->rows.begin, k.end - k.begin, packed->a, MR);
}

static void pack_b(const struct gemm *g, const struct tile *t, struct range k, struct packed *packed)
{
    if (packed->b_item == t->item && packed->b_column == t->columns.begin && packed->b_k == k.begin) return;
    packed->b_item = t->item, packed->b_column = t->columns.begin, packed->b_k = k.begin;
    const elem *b = g->b + t->item * (B_TRANSPOSED ? g->n : g->k) * g->ldb;
    b += B_TRANSPOSED ? t->columns.begin * g->ldb + k.begin : k.begin * g->ldb + t->columns.begin;
    pack(b, g->ldb, B_TRANSPOSED, t->columns.end - t->columns.begin, k.end - k.begin, packed->b, NR);
}

/* The product of a panel of A and one of B. NOTE: the accumulators stay in registers only if every index into
   them is a constant, hence the copy at the end. */
static inline void multiply(const elem *restrict a, const elem *restrict b, int64_t depth, vec out[MR][NV])
{
    vec acc[MR][NV] = {0};
#pragma GCC unroll UNROLL_STEPS
    for (int64_t p = 0; p < depth; p++) {
        vec row[NV];
        if (PREFETCH) __builtin_prefetch(STREAM ? b + PREFETCH * NR : a + PREFETCH * MR);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) row[j] = *(const vec *)(b + j * VL);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) acc[i][j] += a[i] * row[j];
        a += MR;
        b += NR;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) out[i][j] = acc[i][j];
}

/* Adds one register tile to D at (row, column), as far as it lies inside the tile. */
static inline void finish(const struct gemm *g, const struct tile *t, const struct pass *pass, int64_t row,
                          int64_t column, vec acc[MR][NV])
{
    const int64_t height = t->rows.end - row < MR ? t->rows.end - row : MR;
    const int64_t width = t->columns.end - column < NR ? t->columns.end - column : NR;
    for (int64_t i = 0; i < height; i++) {
        const int64_t y = t->item * g->m + row + i;
        for (int64_t j = 0; j * VL < width; j++) {
            const int64_t x = column + j * VL, count = width - j * VL;
            vec value = g->alpha * acc[i][j];
            if (!pass->first) value += load(g->d + y * g->ldd + x, count);
            if (pass->last) value *= g->scale;
            if (HAS_C && g->beta != 0 && (g->scale == 1 ? pass->first : pass->last))
                value += g->beta * load(g->c + y * g->ldc + x, count);
            if (pass->last) {
                if (HAS_BIAS) value += load(g->bias + x, count);
                value = activate(value);
            }
            store(g->d + y * g->ldd + x, value, count);
        }
    }
}

/* Computes every register tile of a cache tile. */
static void multiply_tile(const struct gemm *g, const struct tile *t, const struct pass *pass,
                          const struct packed *packed)
{
    const int64_t depth = pass->k.end - pass->k.begin;
    const int64_t down = ceil_div(t->rows.end - t->rows.begin, MR);
    const int64_t across = ceil_div(t->columns.end - t->columns.begin, NR);
    const int64_t inner = STREAM ? across : down, total = down * across;
    for (int64_t index = 0; index < total; index++) {
        const int64_t i = STREAM ? index / inner : index % inner, j = STREAM ? index % inner : index / inner;
        vec acc[MR][NV];
        multiply(packed->a + i * MR * depth, packed->b + j * NR * depth, depth, acc);
        finish(g, t, pass, t->rows.begin + i * MR, t->columns.begin + j * NR, acc);
    }
}

static void run_tile(const struct gemm *g, const struct tile *t, int backwards, struct packed *packed)
{
    const int64_t passes = ceil_div(g->k, KC);
    for (int64_t step = 0; step < passes; step++) {
        const struct range k = part(g->k, 1, passes, backwards ? passes - 1 - step : step);
        const struct pass pass = {k, step == 0, step == passes - 1};
        pack_a(g, t, k, packed);
        pack_b(g, t, k, packed);
        multiply_tile(g, t, &pass, packed);
    }
}

/* Computes the tiles of D of one thread, `thread` of `threads`. */
__attribute__((visibility("default"))) void host_gemm(
    const elem *a, const elem *b, const elem *c, elem *d, const elem *bias, char *workspace,
    int64_t m, int64_t n, int64_t k, int64_t batch, int64_t lda, int64_t ldb, int64_t ldc, int64_t ldd,
    double alpha, double beta, int32_t thread, int32_t threads)
{
    enum { A_BYTES = (A_PANELS * MR * KC * (int)sizeof(elem) + 63) / 64 * 64,
           B_BYTES = B_PANELS * NR * KC * (int)sizeof(elem) };
    double scale = 1;
    if (k > KC && __builtin_isfinite(alpha) && !(HAS_C && beta != 0 && c == d))
        for (; __builtin_fabs(alpha) >= 2; alpha /= 2) scale *= 2;
    const struct gemm g = {a, b, c, bias, d, m, n, k, batch, lda, ldb, ldc, ldd,
                           (elem)alpha, (elem)beta, (elem)scale};
    char *mine = (char *)(((uintptr_t)workspace + 63) / 64 * 64) + thread * (int64_t)(A_BYTES + B_BYTES);
    struct packed packed = {(elem *)mine, (elem *)(mine + A_BYTES), -1, 0, 0, -1, 0, 0};
    const int64_t tiles = batch * tile_rows(&g) * tile_columns(&g);
    const struct range own = part(tiles, 1, threads, thread);
    for (int64_t index = own.begin; index < own.end; index++) {
        const struct tile t = tile_at(&g, index);
        run_tile(&g, &t, SNAKE && (index - own.begin) % 2, &packed);
    }
}
