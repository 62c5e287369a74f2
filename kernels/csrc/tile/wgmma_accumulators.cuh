// The accumulators of a warpgroup: m_blocks tiles of 64 x TILE_N. Value pairs are numbered as in
// ptx/wgmma.cuh.
#pragma once
#include "ptx/wgmma.cuh"
#include "wgmma_config.cuh"

struct Pair { float x, y; };

struct Accumulators {
    using Op = Wgmma<In, cfg::accumulate_f16, cfg::tile_n>;
    static constexpr int pairs = cfg::tile_n / 4; // of a block, a multiple of 4
    Op::Register value[cfg::m_blocks][Op::registers];

    // NOTE: unless fenced, the compiler moves the zeros of later blocks between the first wgmma.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int block = 0; block < cfg::m_blocks; ++block)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) value[block][i] = 0;
        fence();
    }

    __device__ __forceinline__ void multiply(int block, unsigned long long a, unsigned long long b) {
        Op::issue<cfg::a_transposed, !cfg::b_transposed>(value[block], a, b);
    }

    // Waits for all of the warp's wgmma.
    __device__ __forceinline__ void finish() {
        wgmma_wait<0>();
        fence();
    }

    __device__ __forceinline__ Pair pair(int block, int p) const {
        if constexpr (cfg::accumulate_f16) {
            const unsigned packed = value[block][p];
            return {to_real(f16{static_cast<unsigned short>(packed)}), to_real(f16{static_cast<unsigned short>(packed >> 16)})};
        } else {
            return {value[block][2 * p], value[block][2 * p + 1]};
        }
    }

private:
    __device__ __forceinline__ void fence() {
#pragma unroll
        for (int block = 0; block < cfg::m_blocks; ++block)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) wgmma_fence_register(value[block][i]);
    }
};
