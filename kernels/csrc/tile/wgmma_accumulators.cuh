// The accumulators of a warpgroup: BLOCKS tiles of 64 x WIDTH. Value pairs are numbered as in
// ptx/wgmma.cuh. A_TRANSPOSED and B_TRANSPOSED say how the operands of wgmma lie in shared memory.
#pragma once
#include "config.cuh"
#include "ptx/wgmma.cuh"

struct Pair { Real x, y; };

template <int BLOCKS, int WIDTH, bool F16, bool A_TRANSPOSED_, bool B_TRANSPOSED_> struct Accumulators {
    using Op = Wgmma<In, F16, WIDTH>;
    static constexpr int blocks = BLOCKS, width = WIDTH;
    static constexpr int pairs = WIDTH / 4; // of a block, an even number
    typename Op::Register value[BLOCKS][Op::registers];

    // NOTE: unless fenced, the compiler moves the zeros of later blocks between the first wgmma.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) value[block][i] = 0;
        fence();
    }

    // Where `add` is 0 the block is overwritten.
    __device__ __forceinline__ void multiply(int block, unsigned long long a, unsigned long long b, int add = 1) {
        Op::template issue<A_TRANSPOSED_, B_TRANSPOSED_>(value[block], a, b, add);
    }

    // Only for accumulators that no wgmma in flight writes to.
    __device__ __forceinline__ void add(const Accumulators& other) {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) value[block][i] += other.value[block][i];
    }

    // Waits for all of the warp's wgmma.
    __device__ __forceinline__ void finish() {
        wgmma_wait<0>();
        fence();
    }

    __device__ __forceinline__ Pair pair(int block, int p) const {
        if constexpr (F16) {
            const unsigned packed = value[block][p];
            return {to_real(f16{static_cast<unsigned short>(packed)}), to_real(f16{static_cast<unsigned short>(packed >> 16)})};
        } else {
            return {value[block][2 * p], value[block][2 * p + 1]};
        }
    }

    __device__ __forceinline__ void set_pair(int block, int p, Real x, Real y) {
        if constexpr (F16)
            value[block][p] = Convert<f16>::from(x).bits | unsigned(Convert<f16>::from(y).bits) << 16;
        else
            value[block][2 * p] = x, value[block][2 * p + 1] = y;
    }

private:
    __device__ __forceinline__ void fence() {
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
            for (int i = 0; i < Op::registers; ++i) wgmma_fence_register(value[block][i]);
    }
};
