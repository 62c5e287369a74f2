// The shared memory of a block: the ring of operand tiles, the staged boxes of D, and a flag a consumer.
#pragma once
#include "ptx/cluster.cuh"
#include "tile/ring.cuh"
#include "tile/smem_layout.cuh"
#include "tile/wgmma_accumulators.cuh"
#include "tile/wgmma_tile.cuh"
#include "wgmma_ws_config.cuh"

// Blocks with the same rows of D share A, blocks with the same columns share B.
using TileA = WgmmaTile<In, cfg::tile_m, cfg::tile_k, !cfg::a_transposed, cfg::cluster_n>;
using TileB = WgmmaTile<In, cfg::tile_n, cfg::tile_k, cfg::b_transposed, cfg::cluster_m>;
using Stages = Ring<cfg::stages, TileA::bytes, TileB::bytes>;
using Place = Slot<cfg::stages>;
using Sums = Accumulators<cfg::blocks, cfg::width, cfg::accumulate_f16,
                          cfg::swap_ab ? !cfg::b_transposed : cfg::a_transposed,
                          cfg::swap_ab ? cfg::a_transposed : !cfg::b_transposed>;

// A staged box: 64 of wgmma's M by as much of its N as divides it, the fewer boxes the better. With SWAP_AB it
// is rows of 64 elements, up to 64 of them, else 64 rows of `box_width`. Those are 16, 32 or 64 elements, in TMA's
// swizzle of that many bytes, or, where TMA stores them, an odd number of 16-byte chunks: such rows fall on
// different banks without a swizzle.
constexpr __device__ int widest_box(int width) {
    int widest = 8;
    for (int box = 16; box <= 104; box += 8) {
        const bool swizzled = box == 16 || box == 32 || box == 64, odd = box / 8 % 2;
        const bool possible = cfg::swap_ab ? box <= 64 : swizzled || (cfg::tma_store && odd && !cfg::whole_sectors);
        if (width % box == 0 && possible) widest = box;
    }
    return widest;
}
constexpr int box_width = widest_box(cfg::own_width);
constexpr int box_rows = cfg::swap_ab ? box_width : 64, box_columns = cfg::swap_ab ? 64 : box_width;
using Box = SmemTile<box_rows, box_columns * 2, SmemLayout::xor_>;
constexpr int staging_bytes = cfg::staged ? cfg::store_stages * Box::bytes : 0; // of one consumer

// What a consumer receives from the other block that shares the k of its tile: half of its sums.
constexpr int exchange_bytes = cfg::cluster_k == 1 ? 0 : cfg::blocks * cfg::own_width * 64 * int(sizeof(Real));

struct SharedMemory {
    Stages ring;

    // Boxes, exchanged sums and tiles start at multiples of 1024 bytes; the ring, its barriers, those of the
    // exchange and the flags follow.
    static constexpr int ahead = cfg::consumers * (staging_bytes + exchange_bytes);
    static_assert(staging_bytes % 1024 == 0 && exchange_bytes % 1024 == 0, "all start at multiples of 1024 bytes");

    explicit __device__ __forceinline__ SharedMemory(unsigned start) : ring{start + ahead} {}
    __device__ __forceinline__ unsigned box(int consumer, int stage) const {
        return ring.base - ahead + consumer * staging_bytes + stage * Box::bytes;
    }
    __device__ __forceinline__ unsigned exchange(int consumer) const {
        return ring.base - ahead + cfg::consumers * staging_bytes + consumer * exchange_bytes;
    }
    // Barriers: the sums of the other block are here; the other block has read ours.
    __device__ __forceinline__ unsigned arrived(int consumer) const { return ring.base + Stages::bytes + consumer * 16; }
    __device__ __forceinline__ unsigned taken(int consumer) const { return arrived(consumer) + 8; }
    __device__ __forceinline__ unsigned flag(int consumer) const { return arrived(cfg::consumers) + consumer * 4; }

    // Called by one lane; `readers` arrivals empty a stage.
    __device__ __forceinline__ void init(int readers) const {
        if constexpr (cfg::cluster_k > 1)
            for (int consumer = 0; consumer < cfg::consumers; ++consumer) {
                mbarrier_init(arrived(consumer), 1);
                mbarrier_init(taken(consumer), 4);
            }
        ring.init(readers); // last: its fence is for the barriers of the exchange as well
    }
};

// The blocks of the cluster that this block shares operands with, itself included: those with the same
// columns of D, then the others with the same rows, all with the same k.
struct Neighbours {
    static constexpr int count = cfg::cluster_m + cfg::cluster_n - 1;
    int row, column, depth; // of this block in the cluster

    __device__ __forceinline__ Neighbours() {
        const int rank = cfg::cluster == 1 ? 0 : cluster_rank();
        row = rank % cfg::cluster_m, column = rank % cfg::cluster_tiles / cfg::cluster_m, depth = rank / cfg::cluster_tiles;
    }
    __device__ __forceinline__ unsigned rank(int i) const {
        if (i < cfg::cluster_m) return number(i, column);
        const int other = i - cfg::cluster_m;
        return number(row, other + (other >= column));
    }
    // The block with the other half of this one's k.
    __device__ __forceinline__ unsigned partner() const { return number(row, column) ^ cfg::cluster_tiles; }
    // As bits: who shares this block's rows of A, and its columns of B.
    __device__ __forceinline__ unsigned short row_mask() const {
        unsigned mask = 0;
        for (int i = 0; i < cfg::cluster_n; ++i) mask |= 1u << number(row, i);
        return mask;
    }
    __device__ __forceinline__ unsigned short column_mask() const {
        return ((1u << cfg::cluster_m) - 1) << number(0, column);
    }

private:
    __device__ __forceinline__ unsigned number(int row_, int column_) const {
        return row_ + cfg::cluster_m * column_ + cfg::cluster_tiles * depth;
    }
};
