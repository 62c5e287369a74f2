// The accumulators of a warp tile and the mma over one k step. Value (i, j, e) of a lane is element
// (16 i + lane / 4 + 8 (e / 2), 8 j + 2 (lane % 4) + e % 2) of the warp tile.
#pragma once
#include "mma_sync_config.cuh"
#include "ptx/mma.cuh"
#include "tile/fragments.cuh"

constexpr int accumulator_values = cfg::mma_tiles_m * cfg::mma_tiles_n * 4;

template <bool F16> struct Accumulators {
    Real value[cfg::mma_tiles_m][cfg::mma_tiles_n][4];

    __device__ __forceinline__ void multiply(int i, int j, const Fragments& f) {
        if constexpr (cfg::accumulate_outside) {
            Real product[4] = {0, 0, 0, 0};
            step<Mma<In>>(product, f.a[i], f.b[j]);
#pragma unroll
            for (int e = 0; e < 4; ++e) value[i][j][e] += product[e];
        } else {
            step<Mma<In>>(value[i][j], f.a[i], f.b[j]);
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < accumulator_values; ++i) (&value[0][0][0])[i] = 0;
    }
    __device__ __forceinline__ void read(Real (&out)[accumulator_values]) const {
#pragma unroll
        for (int i = 0; i < accumulator_values; ++i) out[i] = (&value[0][0][0])[i];
    }

private:
    template <class M>
    static __device__ __forceinline__ void step(Real (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
        if constexpr (cfg::mma_k == 16) {
            M::full(c, a, b);
        } else {
            M::k8(c, a[0], a[1], b[0]);
            M::k8(c, a[2], a[3], b[1]);
        }
    }
};

template <> struct Accumulators<true> {
    unsigned value[cfg::mma_tiles_m][cfg::mma_tiles_n][2];

    __device__ __forceinline__ void multiply(int i, int j, const Fragments& f) {
        if constexpr (cfg::mma_k == 16) {
            mma_f16_k16(value[i][j], f.a[i], f.b[j]);
        } else {
            mma_f16_k8(value[i][j], f.a[i][0], f.a[i][1], f.b[j][0]);
            mma_f16_k8(value[i][j], f.a[i][2], f.a[i][3], f.b[j][1]);
        }
    }
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < accumulator_values / 2; ++i) (&value[0][0][0])[i] = 0;
    }
    __device__ __forceinline__ void read(Real (&out)[accumulator_values]) const {
#pragma unroll
        for (int i = 0; i < accumulator_values / 2; ++i) {
            const unsigned packed = (&value[0][0][0])[i];
            out[2 * i] = to_real(f16{static_cast<unsigned short>(packed)});
            out[2 * i + 1] = to_real(f16{static_cast<unsigned short>(packed >> 16)});
        }
    }
};

// One k step over the warp tile; SNAKE turns every other row of mma tiles round to reuse fragments.
__device__ __forceinline__ void mma_step(Accumulators<cfg::accumulate_f16>& acc, const Fragments& f) {
#pragma unroll
    for (int i = 0; i < cfg::mma_tiles_m; ++i) {
#pragma unroll
        for (int step = 0; step < cfg::mma_tiles_n; ++step) {
            const int j = cfg::snake && i % 2 ? cfg::mma_tiles_n - 1 - step : step;
            acc.multiply(i, j, f);
        }
    }
}
