// D = act(alpha * accumulator + beta * C + bias), element by element in the accumulate type.
#pragma once
#include "config.cuh"

struct Epilogue {
    const Out* c;
    Out* d;
    const Out* bias;
    long long ldc, ldd;
    int m, n;
    Real alpha, beta;

    // The same, for a few elements each time. NOTE: the compiler would load the bias of all columns ahead, for which
    // there are no registers. It cannot load through a pointer that it has not yet been given.
    __device__ __forceinline__ Epilogue pinned() const {
        Epilogue here = *this;
        if constexpr (cfg::has_bias) asm volatile("" : "+l"(here.bias));
        return here;
    }

    __device__ __forceinline__ Out apply(Real accumulator, int row, int col) const {
        Real x = alpha * accumulator;
        // NOTE: beta = 0 means that C is not read, as in every BLAS: it may hold NaN.
        if constexpr (cfg::has_c)
            if (beta != Real(0)) x += beta * Real(to_real(c[row * ldc + col]));
        if constexpr (cfg::has_bias) x += Real(to_real(bias[col]));
        return Convert<Out>::from(activate(x));
    }

    // NOTE: a template, so that the integers, which have no tanh, never compile gelu.
    template <class R> static __device__ __forceinline__ R activate(R x) {
        if constexpr (cfg::activation == 1) return x > R(0) || x != x ? x : R(0);
        if constexpr (cfg::activation == 2) {
            const R inner = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
            return R(0.5) * x * (R(1) + tanh(inner));
        }
        return x;
    }

    __device__ __forceinline__ void store(Real x, int row, int col) const {
        if (row < m && col < n) d[row * ldd + col] = apply(x, row, col);
    }

    // Stores the neighbours (row, col) and (row, col + 1), in one access where alignment allows.
    __device__ __forceinline__ void store2(Real x, Real y, int row, int col) const {
        if (row >= m || col >= n) return;
        Out* target = d + row * ldd + col;
        if (col + 1 >= n) {
            *target = apply(x, row, col);
            return;
        }
        struct alignas(2 * sizeof(Out)) Pair { Out x, y; };
        const Pair pair{apply(x, row, col), apply(y, row, col + 1)};
        if constexpr (cfg::align_d >= int(2 * sizeof(Out)))
            *reinterpret_cast<Pair*>(target) = pair;
        else
            target[0] = pair.x, target[1] = pair.y;
    }
};
