// One operand's tile in shared memory as TMA writes it and wgmma reads it: EXTENT rows of D (A) or columns
// of D (B) times DEPTH of k, in panels that are 64 elements (128 bytes) wide along the contiguous axis.
//   K_MAJOR   panel p holds k 64 p .. 64 p + 63, one line of 128 bytes for each of EXTENT
//   else      panel p holds 64 p .. 64 p + 63 of EXTENT, one line of 128 bytes for each k
// Within 1024 bytes (8 lines), 16-byte chunk c of line l lies at chunk c ^ l: TMA's and wgmma's 128-byte
// swizzle; tiles start at multiples of 1024 bytes. Mirrored by kernels/wgmma_layout.py.
#pragma once
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <int EXTENT, int DEPTH, bool K_MAJOR> struct WgmmaTile {
    static constexpr int panels = (K_MAJOR ? DEPTH : EXTENT) / 64;
    static constexpr int panel_bytes = (K_MAJOR ? EXTENT : DEPTH) * 128;
    static constexpr int bytes = panels * panel_bytes;
    static_assert((K_MAJOR ? DEPTH : EXTENT) % 64 == 0, "the contiguous axis of a tile is a multiple of 64");
    static_assert(bytes % 1024 == 0, "tiles start at multiples of 1024 bytes");

    // One box a panel; x0 is where the tile starts along EXTENT.
    static __device__ __forceinline__ void load(unsigned smem, const TensorMap* map, unsigned barrier, int x0, int k0,
                                                int batch) {
#pragma unroll
        for (int p = 0; p < panels; ++p) {
            if constexpr (K_MAJOR)
                tma_load(smem + p * panel_bytes, map, barrier, k0 + p * 64, x0, batch);
            else
                tma_load(smem + p * panel_bytes, map, barrier, x0 + p * 64, k0, batch);
        }
    }

    // NOTE: the stride offset goes from 8 lines to the next 8, the leading offset from panel to panel; a
    // K-major wgmma never leaves its panel and ignores the latter.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned smem) {
        return wgmma_descriptor(smem, K_MAJOR ? 1 : panel_bytes / 16, 1024 / 16);
    }

    // What to add to a descriptor, in units of 16 bytes, for a step of 16 along k and a block of 64 along
    // EXTENT.
    static constexpr __device__ __forceinline__ unsigned step_offset(int step) {
        return K_MAJOR ? step / 4 * (panel_bytes / 16) + step % 4 * 2 : step * 128;
    }
    static constexpr __device__ __forceinline__ unsigned block_offset(int block) {
        return K_MAJOR ? block * 512 : block * (panel_bytes / 16);
    }
};
