/* Vectors of D and the activations, which are applied to one vector at a time. */
#pragma once
#include "host/config.h"

typedef elem vec __attribute__((vector_size(VECTOR_BYTES)));
typedef elem vec_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(elem)), may_alias));
typedef elem_bits vec_bits __attribute__((vector_size(VECTOR_BYTES)));

/* Loads `count` elements, at most a vector; the others are zero. */
static inline vec load(const elem *from, int64_t count)
{
    if (count >= VL) return *(const vec_unaligned *)from;
    vec value = {0};
    for (int i = 0; i < count; i++) value[i] = from[i];
    return value;
}

static inline void store(elem *to, vec value, int64_t count)
{
    if (count >= VL)
        *(vec_unaligned *)to = value;
    else
        for (int i = 0; i < count; i++) to[i] = value[i];
}

/* `yes` where the mask is set, else `no`. NOTE: GNU C has no ?: for vectors. */
static inline vec select(vec_bits mask, vec yes, vec no)
{
    return (vec)((mask & (vec_bits)yes) | (~mask & (vec_bits)no));
}

/* e^x to the last bits: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor in r, n added to the exponent.
   NOTE: beyond the largest number n makes it infinite, so that x / (1 + e^-2u) is 0 for every large negative x. */
static inline vec exponential(vec x)
{
    enum { TERMS = DOUBLE ? 13 : 8, MANTISSA = DOUBLE ? 52 : 23, BIAS = DOUBLE ? 1023 : 127 };
    const elem most = DOUBLE ? 710 : 89, least = DOUBLE ? -708 : -87, magic = DOUBLE ? 0x1.8p52 : 0x1.8p23f;
    const elem high = DOUBLE ? 0x1.62e42feep-1 : 0x1.62e4p-1, low = (elem)(0x1.62e42fefa39efp-1 - high);
    const vec zero = {0};
    x = select(x > most, zero + most, x);
    x = select(x < least, zero + least, x);
    /* NOTE: adding 1.5 * 2^MANTISSA rounds to an integer, which then stands in the low bits */
    const vec shifted = x * (elem)1.4426950408889634 + magic;
    const vec n = shifted - magic, r = (x - n * high) - n * low;
    vec sum = zero + 1;
    for (int i = TERMS; i > 0; i--) sum = 1 + sum * (r * ((elem)1 / (elem)i));
    const vec_bits power = ((vec_bits)shifted - (vec_bits)(zero + magic) + BIAS) << MANTISSA;
    return sum * (vec)power;
}

static inline vec activate(vec x)
{
    const vec zero = {0};
    if (ACTIVATION == 1) return select(x < zero, zero, x);
    if (ACTIVATION == 2) { /* x/2 (1 + tanh(u)) = x / (1 + e^-2u) */
        const vec u = (elem)0.7978845608028654 * (x + (elem)0.044715 * x * x * x);
        return x / (1 + exponential(-2 * u));
    }
    return x;
}
