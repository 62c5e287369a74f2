// Scheduler: which work tiles a CTA computes, in which order, and the CTA's position in its cluster. Every warp role of a CTA, and
// every CTA of a cluster, iterates over the same list independently.
#pragma once
#include "common/ptx/control.cuh"
#include "common/raster.cuh"
#include "wgmma_ws/config.cuh"

// The CTA in its cluster: a tile of the CLUSTER_M x CLUSTER_N tiles, and a partition of their k.
struct ClusterPosition {
    static constexpr int readers = cfg::cluster_m + cfg::cluster_n - 1;
    int row, column, k_partition;

    __device__ __forceinline__ ClusterPosition() {
        const int rank = cfg::cluster == 1 ? 0 : cluster_rank();
        row = rank % cfg::cluster_m, column = rank % cfg::cluster_tiles / cfg::cluster_m, k_partition = rank / cfg::cluster_tiles;
    }
    // CTA i of those that read the operands that this CTA loads, itself included: first its column, then the rest of its row.
    __device__ __forceinline__ unsigned reader(int i) const {
        if (i < cfg::cluster_m) return rank_at(i, column);
        const int other = i - cfg::cluster_m;
        return rank_at(row, other + (other >= column));
    }
    // The CTA with the other partition of this CTA's k.
    __device__ __forceinline__ unsigned k_partner() const { return rank_at(row, column) ^ cfg::cluster_tiles; }
    // The CTAs that multicasts of A and of B reach, one bit each: those of this row, and those of this column.
    __device__ __forceinline__ unsigned short multicast_a() const {
        unsigned mask = 0;
        for (int i = 0; i < cfg::cluster_n; ++i) mask |= 1u << rank_at(row, i);
        return mask;
    }
    __device__ __forceinline__ unsigned short multicast_b() const {
        return ((1u << cfg::cluster_m) - 1) << rank_at(0, column);
    }

private:
    __device__ __forceinline__ unsigned rank_at(int row_, int column_) const {
        return row_ + cfg::cluster_m * column_ + cfg::cluster_tiles * k_partition;
    }
};

// The unit of work of a CTA: the products of k tiles [k_begin, k_end) for one tile of D.
struct WorkTile {
    int m, n, batch; // first row and column of the tile
    int tile;        // its number among all tiles of the launch
    int k_begin, k_end;
    int split;       // which of the SPLIT_K work tiles of the tile
    int first_slot;  // of its partials, see Partials
    bool reverse;    // the last k tile comes first

    __device__ __forceinline__ int k_tiles() const { return k_end - k_begin; }
    // The k tile that comes `index`-th.
    constexpr __device__ __forceinline__ int k_tile(int index) const { return reverse ? k_end - 1 - index : k_begin + index; }
};

class Scheduler {
public:
    int batch, k_partition;

    // `first`: number of the cluster's first work tile.
    __device__ __forceinline__ Scheduler(int m, int n, int k, int batch_, int first) : batch(batch_) {
        const int in_cluster = cfg::cluster == 1 ? 0 : cluster_rank();
        rank = in_cluster % cfg::cluster_tiles, k_partition = in_cluster / cfg::cluster_tiles;
        clusters = gridDim.x / cfg::cluster;
        across_m = ceil_div(m, cfg::tile_m * cfg::cluster_m), across_n = ceil_div(n, cfg::tile_n * cfg::cluster_n);
        k_tiles = ceil_div(k, cfg::tile_k);
        end = across_m * across_n * batch * cfg::split_k;
        number = first;
    }

    // Tiles of the launch, those of clusters that lie partly outside D included.
    __device__ __forceinline__ int tiles() const { return end / cfg::split_k * cfg::cluster_tiles; }

    // Extents of D in whole clusters of tiles.
    __device__ __forceinline__ int rows() const { return across_m * cfg::cluster_m * cfg::tile_m; }
    __device__ __forceinline__ int columns() const { return across_n * cfg::cluster_n * cfg::tile_n; }

    // The next work tile; false if there is none. With REVERSE_K a CTA alternates the direction of k: it begins with the k that
    // it loaded last, and hits the L2 with an operand that both work tiles read.
    __device__ __forceinline__ bool next(WorkTile& work) {
        work.reverse = cfg::reverse_k && odd;
        odd = !odd;
        if (number >= end) return false;
        int cluster_tile = number / cfg::split_k;
        work.split = number % cfg::split_k;
        // Work tiles of one split read the same k, so the clusters of a GPC take those of one split together. NOTE: not where the
        // CTAs of a tile wait for each other and some would run in a later wave.
        if constexpr (cfg::gpc_order && cfg::split_k > 1)
            if (!cfg::reduce_scatter || end <= clusters) {
                const int cluster_tiles = end / cfg::split_k;
                cluster_tile = number % cluster_tiles, work.split = number / cluster_tiles;
            }
        locate(work, cluster_tile);
        constexpr int partitions = cfg::split_k * cfg::cluster_k;
        const int partition = work.split * cfg::cluster_k + k_partition;
        work.k_begin = static_cast<long long>(k_tiles) * partition / partitions;
        work.k_end = static_cast<long long>(k_tiles) * (partition + 1) / partitions;
        work.first_slot = work.tile * cfg::split_k;
        number += clusters;
        return true;
    }

private:
    int clusters, rank, across_m, across_n, k_tiles;
    int number, end;  // of the next work tile, and of all
    bool odd = false; // the next work tile is the second, the fourth ..

    static __device__ __forceinline__ int ceil_div(int x, int y) { return (x + y - 1) / y; }

    __device__ __forceinline__ void locate(WorkTile& work, int cluster_tile) const {
        const int in_matrix = across_m * across_n;
        work.batch = batch == 1 ? 0 : cluster_tile / in_matrix;
        const TileCoord corner = raster_tile(cluster_tile - work.batch * in_matrix, across_m, across_n);
        work.tile = cluster_tile * cfg::cluster_tiles + rank;
        work.m = (corner.m * cfg::cluster_m + rank % cfg::cluster_m) * cfg::tile_m;
        work.n = (corner.n * cfg::cluster_n + rank / cfg::cluster_m) * cfg::tile_n;
    }
};

#if CTA_ORDER == 1
// The number of the first work tile of each cluster, which the host derives from the SMs that probe_sm_ids() reports:
// client/tilewright/launch/cta_order.py.
struct CtaOrder { unsigned char first[256]; };

// Reports the SM of every CTA of a grid like that of the GEMM.
extern "C" __global__ void probe_sm_ids(unsigned* sm_ids) {
    if (threadIdx.x == 0) sm_ids[blockIdx.x] = sm_id();
    // NOTE: all CTAs must run at once, else an SM takes two, one after the other.
    for (const long long start = clock64(); clock64() - start < 30000;) {}
}
#endif
