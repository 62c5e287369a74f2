// The products of a panel, from shared memory.
#pragma once
#include "ptx/ldmatrix.cuh"
#include "ptx/mma.cuh"
#include "stream/memory.cuh"

// A warp's sums of a tile: the weights are the 16 rows of an mma, thin rows its 8 columns.
struct PanelSums {
    static constexpr int k_steps = cfg::panel_bytes / 32;
    // Of the products, those of every chains-th step of k: an mma waits for the sums of the one before.
    static constexpr int chains = cfg::warp_tiles * cfg::thin_tiles < 4 ? 4 / (cfg::warp_tiles * cfg::thin_tiles) : 1;
    Real value[chains][cfg::warp_tiles][cfg::thin_tiles][4] = {};

    // Adds the product of a panel of weights and panel `index` of the thin slice.
    __device__ __forceinline__ void multiply(unsigned weights, unsigned thin, int index) {
        unsigned a[k_steps][cfg::warp_tiles][4], b[k_steps][cfg::thin_tiles][2];
        load_weights(a, weights);
        load_thin(b, thin, index * cfg::tile_thin);
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
                for (int j = 0; j < cfg::thin_tiles; ++j) Mma<In>::full(value[s % chains][i][j], a[s][i], b[s][j]);
    }
    __device__ __forceinline__ void put(Real* sums) const {
        const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < cfg::warp_tiles; ++i)
#pragma unroll
            for (int j = 0; j < cfg::thin_tiles; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int thin = j * 8 + 2 * t + e % 2;
                    if (thin < cfg::tile_thin) sums[thin * sums_stride + i * 16 + g + e / 2 * 8] = total(i, j, e);
                }
    }

private:
    __device__ __forceinline__ Real total(int i, int j, int e) const {
        Real sum = value[0][i][j][e];
#pragma unroll
        for (int c = 1; c < chains; ++c) sum += value[c][i][j][e];
        return sum;
    }
    static __device__ __forceinline__ void load_weights(unsigned (&a)[k_steps][cfg::warp_tiles][4], unsigned weights) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int s = 0; s < k_steps; ++s)
#pragma unroll
            for (int i = 0; i < cfg::warp_tiles; ++i)
                ldmatrix_x4(a[s][i], weights + i * 16 * cfg::panel_bytes + SharedMemory::swizzled(lane % 16, 2 * s + lane / 16));
    }
    // NOTE: fewer than 8 thin rows stand in several columns; those beyond the tile are never stored.
    static __device__ __forceinline__ void load_thin(unsigned (&b)[k_steps][cfg::thin_tiles][2], unsigned thin, int line) {
        const int lane = threadIdx.x % 32;
        constexpr int steps = 2 / cfg::thin_tiles; // of one ldmatrix
#pragma unroll
        for (int s = 0; s < k_steps; s += steps) {
            const int row = steps == 2 ? lane % cfg::tile_thin : lane % 8 + lane / 16 * 8;
            const int chunk = 2 * s + (steps == 2 ? lane / 8 : lane / 8 % 2);
            unsigned r[4];
            ldmatrix_x4(r, thin + SharedMemory::swizzled(line + row, chunk));
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                unsigned(&to)[2] = steps == 2 ? b[s + i][0] : b[s][i];
                to[0] = r[2 * i], to[1] = r[2 * i + 1];
            }
        }
    }
};
