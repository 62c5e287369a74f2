// D = act(alpha * accumulator + beta * C + bias), element by element in the accumulate type.
#pragma once
#include "common/config.cuh"
#include "common/ptx/math.cuh"

struct Epilogue {
    const Out* c;
    Out* d;
    const Out* bias;
    long long ldc, ldd;
    int m, n;
    ElementAccumulator alpha, beta;

    // A copy for the next few elements. NOTE: otherwise the compiler loads the bias of all columns ahead and runs out of
    // registers. It cannot load early through a pointer that this copy hides from it.
    __device__ __forceinline__ Epilogue pinned() const {
        Epilogue here = *this;
        if constexpr (cfg::has_bias) asm volatile("" : "+l"(here.bias));
        return here;
    }

    // NOTE: with beta = 0 C is not read, as in every BLAS: it may hold NaN.
    __device__ __forceinline__ bool reads_c() const { return cfg::has_c && beta != ElementAccumulator(0); }

    __device__ __forceinline__ Out apply(ElementAccumulator accumulator, int row, int col) const {
        return finish(accumulator, reads_c() ? c[row * ldc + col] : Out{}, col);
    }

    // The same with an element of C that was loaded before, or 0.
    __device__ __forceinline__ Out finish(ElementAccumulator accumulator, Out held, int col) const {
        ElementAccumulator x = alpha * accumulator;
        if constexpr (cfg::has_c) x += beta * ElementAccumulator(to_accumulator(held));
        if constexpr (cfg::has_bias) x += ElementAccumulator(to_accumulator(bias[col]));
        return Convert<Out>::from(activate(x));
    }

    // NOTE: a template, so that gelu is never compiled for integers, which have no tanh. In float 0.5 x (1 + tanh(u)) is
    // x / (1 + exp(-2 u)): a quarter of the code of tanhf, within 2^-20 of the value plus 2^-24
    // (tests/unit/measure/test_gelu.py).
    template <class R> static __device__ __forceinline__ R activate(R x) {
        if constexpr (cfg::activation == 1) return x > R(0) || x != x ? x : R(0);
        if constexpr (cfg::activation == 2 && sizeof(R) == 4) {
            constexpr float linear = -2.302208198f, cubic = -0.1029432397f; // -2 log2(e) sqrt(2 / pi), times 0.044715
            return x * rcp_approx(1 + ex2_approx(x * (linear + cubic * x * x)));
        } else if constexpr (cfg::activation == 2) {
            const R inner = R(0.7978845608028654) * (x + R(0.044715) * x * x * x);
            return R(0.5) * x * (R(1) + tanh(inner));
        }
        return x;
    }

    __device__ __forceinline__ void store(ElementAccumulator x, int row, int col) const {
        if (row < m && col < n) d[row * ldd + col] = apply(x, row, col);
    }

    // Stores the neighbours (row, col) and (row, col + 1), in one access if the alignment allows it.
    __device__ __forceinline__ void store2(ElementAccumulator x, ElementAccumulator y, int row, int col) const {
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
