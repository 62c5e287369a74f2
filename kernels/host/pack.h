/* Packing: a cache tile of A or B becomes panels of `width` rows (or columns), stored k step by k step,
   the last panel filled up with zeros. The micro-kernel then reads memory in order only. */
#pragma once
#include "host/config.h"

#define INLINE static inline __attribute__((always_inline))

enum { QUAD = 16 / (int)sizeof(elem), LINE = 64 / (int)sizeof(elem) };
typedef elem quad __attribute__((vector_size(16)));
typedef elem quad_unaligned __attribute__((vector_size(16), aligned(sizeof(elem)), may_alias));
typedef elem_bits quad_mask __attribute__((vector_size(16)));

/* QUAD rows of a source, each contiguous along k, to QUAD k steps of a panel. */
INLINE void transpose_quad(const elem *source, int64_t stride, elem *panel, int width)
{
    quad in[QUAD], out[QUAD];
    for (int i = 0; i < QUAD; i++) in[i] = *(const quad_unaligned *)(source + i * stride);
#if DOUBLE
    out[0] = __builtin_shuffle(in[0], in[1], (quad_mask){0, 2});
    out[1] = __builtin_shuffle(in[0], in[1], (quad_mask){1, 3});
#else
    const quad_mask low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, second = {2, 3, 6, 7};
    const quad low01 = __builtin_shuffle(in[0], in[1], low), low23 = __builtin_shuffle(in[2], in[3], low);
    const quad high01 = __builtin_shuffle(in[0], in[1], high), high23 = __builtin_shuffle(in[2], in[3], high);
    out[0] = __builtin_shuffle(low01, low23, first);
    out[1] = __builtin_shuffle(low01, low23, second);
    out[2] = __builtin_shuffle(high01, high23, first);
    out[3] = __builtin_shuffle(high01, high23, second);
#endif
    for (int i = 0; i < QUAD; i++) *(quad_unaligned *)(panel + i * width) = out[i];
}

/* `steps` k steps of a panel from a source that is contiguous along k: source[i * stride + p]. */
INLINE void pack_steps(const elem *source, int64_t stride, int count, int64_t steps, elem *panel, int width)
{
    int i = 0;
    for (; i + QUAD <= count; i += QUAD) {
        int64_t p = 0;
        for (; p + QUAD <= steps; p += QUAD)
            transpose_quad(source + i * stride + p, stride, panel + p * width + i, width);
        for (; p < steps; p++)
            for (int q = 0; q < QUAD; q++) panel[p * width + i + q] = source[(i + q) * stride + p];
    }
    for (; i < count; i++)
        for (int64_t p = 0; p < steps; p++) panel[p * width + i] = source[i * stride + p];
    for (; i < width; i++)
        for (int64_t p = 0; p < steps; p++) panel[p * width + i] = 0;
}

/* One such panel, a cache line of every row at a time. */
INLINE void pack_along_k(const elem *source, int64_t stride, int count, int64_t depth, elem *panel,
                         int width)
{
    int64_t p = 0;
    for (; p + LINE <= depth; p += LINE)
        pack_steps(source + p, stride, count, LINE, panel + p * width, width);
    pack_steps(source + p, stride, count, depth - p, panel + p * width, width);
}

/* One panel from a source that is contiguous along the panel: source[p * stride + i]. */
INLINE void pack_across_k(const elem *source, int64_t stride, int count, int64_t depth, elem *panel,
                          int width)
{
    for (int64_t p = 0; p < depth; p++) {
        const elem *from = source + p * stride;
        elem *to = panel + p * width;
        if (count == width)
            for (int i = 0; i < width; i++) to[i] = from[i];
        else
            for (int i = 0; i < width; i++) to[i] = i < count ? from[i] : 0;
    }
}

/* All panels of `extent` rows (columns) of a tile whose first element is at `source`. */
INLINE void pack(const elem *source, int64_t stride, int along_k, int64_t extent, int64_t depth, elem *panels,
                 int width)
{
    for (int64_t i = 0; i < extent; i += width) {
        const int count = extent - i < width ? (int)(extent - i) : width;
        if (along_k)
            pack_along_k(source + i * stride, stride, count, depth, panels + i * depth, width);
        else
            pack_across_k(source + i, stride, count, depth, panels + i * depth, width);
    }
}
