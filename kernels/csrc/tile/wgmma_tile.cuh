// One operand's tile in shared memory as TMA writes it and wgmma reads it: EXTENT rows of D (A) or columns
// of D (B) times DEPTH of k, in panels that are 128 bytes (64 elements of 16 bits, 128 of 8) wide along the
// contiguous axis.
//   K_MAJOR   panel p holds the p-th 128 bytes of k, one line of 128 bytes for each of EXTENT
//   else      panel p holds 64 p .. 64 p + 63 of EXTENT, one line of 128 bytes for each k
// Within 1024 bytes (8 lines), 16-byte chunk c of line l lies at chunk c ^ l: TMA's and wgmma's 128-byte
// swizzle; tiles start at multiples of 1024 bytes. SHARES blocks of a cluster multicast to all what they load:
// each 1 / SHARES of the lines, or, where shares would not be whole groups of 8 lines, the whole tile in
// turns, one k tile after the other. Mirrored by kernels/wgmma_layout.py.
#pragma once
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

template <class T, int EXTENT, int DEPTH, bool K_MAJOR, int SHARES = 1> struct WgmmaTile {
    static constexpr int panel = 128 / int(sizeof(T)); // elements
    static constexpr int panels = (K_MAJOR ? DEPTH : EXTENT) / panel;
    static constexpr int lines = K_MAJOR ? EXTENT : DEPTH;
    static constexpr int panel_bytes = lines * 128;
    static constexpr int bytes = panels * panel_bytes;
    static_assert((K_MAJOR ? DEPTH : EXTENT) % panel == 0, "the contiguous axis of a tile is whole panels");
    static constexpr bool divided = lines % (8 * SHARES) == 0;
    static_assert(lines % 8 == 0, "tiles are multiples of 1024 bytes");
    static_assert(K_MAJOR || sizeof(T) == 2, "wgmma transposes 16-bit elements only");

    // One box a panel; x0 is where the tile starts along EXTENT.
    static __device__ __forceinline__ void load(unsigned smem, const TensorMap* map, unsigned barrier, int x0, int k0,
                                                int batch) {
#pragma unroll
        for (int p = 0; p < panels; ++p) {
            const int column = (K_MAJOR ? k0 : x0) + p * panel;
            tma_load(smem + p * panel_bytes, map, barrier, column, K_MAJOR ? x0 : k0, batch);
        }
    }

    // Loads what falls to block number `share` of k tile `index` for the blocks in `blocks`, or everything for
    // this block if SHARES is 1.
    template <CacheHint HINT>
    static __device__ __forceinline__ void load_share(unsigned smem, const TensorMap* map, unsigned barrier, int x0, int index,
                                                      int batch, int share, unsigned short blocks) {
        each_box(x0, index, share, [&](int offset, int column, int row) {
            if constexpr (SHARES > 1)
                tma_load_multicast<HINT>(smem + offset, map, barrier, column, row, batch, blocks);
            else
                tma_load<HINT>(smem + offset, map, barrier, column, row, batch);
        });
    }

    // Brings into the L2 what load_share() will load.
    static __device__ __forceinline__ void prefetch_share(const TensorMap* map, int x0, int index, int batch, int share) {
        each_box(x0, index, share, [&](int, int column, int row) { tma_prefetch(map, column, row, batch); });
    }

    // NOTE: the stride offset goes from 8 lines to the next 8, the leading offset from panel to panel; a
    // K-major wgmma never leaves its panel and ignores the latter.
    static __device__ __forceinline__ unsigned long long descriptor(unsigned smem) {
        return wgmma_descriptor(smem, K_MAJOR ? 1 : panel_bytes / 16, 1024 / 16);
    }

    // What to add to a descriptor, in units of 16 bytes, for a step of 32 bytes (16 elements if not K_MAJOR)
    // along k, and for x elements along EXTENT: a multiple of 8, of 64 if not K_MAJOR.
    static constexpr __device__ __forceinline__ unsigned step_offset(int step) {
        return K_MAJOR ? step / 4 * (panel_bytes / 16) + step % 4 * 2 : step * 128;
    }
    static constexpr __device__ __forceinline__ unsigned extent_offset(int x) {
        return K_MAJOR ? x * 8 : x / 64 * (panel_bytes / 16);
    }

private:
    // The boxes of a share, one a panel: where they go in the tile and come from.
    template <class Box> static __device__ __forceinline__ void each_box(int x0, int index, int share, Box box) {
        if (!divided && index % SHARES != share) return;
        constexpr int share_lines = divided ? lines / SHARES : 0;
        const int k0 = index * DEPTH;
#pragma unroll
        for (int p = 0; p < panels; ++p)
            box(p * panel_bytes + share * (share_lines * 128), (K_MAJOR ? k0 : x0) + p * panel,
                (K_MAJOR ? x0 : k0) + share * share_lines);
    }
};
