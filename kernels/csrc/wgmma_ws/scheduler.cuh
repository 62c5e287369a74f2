// Scheduler: the list of work units that a block walks. All roles of a block, and all blocks of a cluster,
// walk the same list on their own, so none has to tell another what comes next.
#pragma once
#include "ptx/cluster.cuh"
#include "tile/raster.cuh"
#include "wgmma_ws/shares.cuh"
#include "wgmma_ws_config.cuh"

// A part of the sums of one tile of D: those over k tiles [k_begin, k_end).
struct Work {
    int m, n, batch; // first row and column of the tile
    int tile;        // its number among all tiles of the launch
    int k_begin, k_end;
    int part, parts; // this is one of `parts` units that make up the tile
    int first_slot;  // where part 0 leaves its sums, see Partials
    bool backwards;  // the last k tile comes first

    __device__ __forceinline__ int k_tiles() const { return k_end - k_begin; }
    // The k tile that comes `index`-th.
    constexpr __device__ __forceinline__ int k_tile(int index) const { return backwards ? k_end - 1 - index : k_begin + index; }
};

class Scheduler {
public:
    int batch, depth; // depth: which share of a unit's k this block of the cluster has

    // `place`: of the block's cluster in the list.
    __device__ __forceinline__ Scheduler(int m, int n, int k, int batch_, int place) : batch(batch_), cluster(place) {
        const int in_cluster = cfg::cluster == 1 ? 0 : cluster_rank();
        rank = in_cluster % cfg::cluster_tiles, depth = in_cluster / cfg::cluster_tiles;
        clusters = gridDim.x / cfg::cluster;
        across_m = ceil_div(m, cfg::tile_m * cfg::cluster_m), across_n = ceil_div(n, cfg::tile_n * cfg::cluster_n);
        k_tiles = ceil_div(k, cfg::tile_k);
        const int tiles = across_m * across_n * batch; // by whole clusters
        end = tiles * cfg::split_k;
        if constexpr (cfg::even_waves) {
            const int even = clusters - clusters % cfg::group;
            if (even > 0 && ceil_div(end, even) == ceil_div(end, clusters)) clusters = even;
        }
        int streamed = 0; // tiles whose k is shared out among clusters: fewer than two for each
        if constexpr (cfg::stream_k) {
            // The tail and the wave before it, unless the tail fills half of the multiprocessors anyway.
            const int tail = tiles % clusters;
            streamed = tail == 0 || (tiles > clusters && 2 * tail >= clusters) ? 0 : min(tiles, tail + clusters);
            shares = Shares::of(streamed * k_tiles, clusters, least_share);
            next_step = cluster < shares.count ? shares.first(cluster) : 0;
            end_step = cluster < shares.count ? shares.first(cluster + 1) : 0;
        }
        next_unit = !cfg::even_waves || cluster < clusters ? streamed + cluster : end;
    }

    // Tiles of the launch, those of clusters that lie partly outside of D included.
    __device__ __forceinline__ int tiles() const { return end / cfg::split_k * cfg::cluster_tiles; }

    // Extents of D in whole clusters of tiles.
    __device__ __forceinline__ int rows() const { return across_m * cfg::cluster_m * cfg::tile_m; }
    __device__ __forceinline__ int columns() const { return across_n * cfg::cluster_n * cfg::tile_n; }

    // False when there is nothing left to do. With SNAKE_K a block walks k back where it went forth in its unit before,
    // and meets in the L2 what it loaded last, of an operand that both units have.
    __device__ __forceinline__ bool next(Work& work) {
        work.backwards = cfg::snake_k && odd;
        odd = !odd;
        if constexpr (cfg::stream_k)
            if (next_step < end_step) {
                stream(work);
                return true;
            }
        if (next_unit >= end) return false;
        int tile = next_unit / cfg::split_k, part = next_unit % cfg::split_k;
        // Units of one part share operands, and neighbours of a GPC load them together. NOTE: not where the parts of a
        // tile wait for each other and some would come in a later wave.
        if constexpr (cfg::by_gpc && cfg::split_k > 1)
            if (!cfg::shared_out || end <= clusters) {
                const int whole = end / cfg::split_k;
                tile = next_unit % whole, part = next_unit / whole;
            }
        place(work, tile);
        work.part = part, work.parts = cfg::split_k;
        const int share = part * cfg::cluster_k + depth;
        work.k_begin = static_cast<long long>(k_tiles) * share / (cfg::split_k * cfg::cluster_k);
        work.k_end = static_cast<long long>(k_tiles) * (share + 1) / (cfg::split_k * cfg::cluster_k);
        work.first_slot = work.tile * cfg::split_k;
        next_unit += clusters;
        return true;
    }

private:
    int clusters, cluster, rank, across_m, across_n, k_tiles;
    int next_unit, end;
    bool odd = false; // the next unit is the second, the fourth ..
    static constexpr int least_share = 4; // k tiles, for fewer a partial tile costs more than it saves
    Shares shares;
    int next_step, end_step; // k tiles of the tiles that are shared out, counted through

    static __device__ __forceinline__ int ceil_div(int x, int y) { return (x + y - 1) / y; }

    __device__ __forceinline__ void stream(Work& work) {
        const int tile = next_step / k_tiles, first_step = tile * k_tiles;
        place(work, tile);
        const int first = shares.owner(first_step);
        work.part = cluster - first;
        work.parts = shares.owner(first_step + k_tiles - 1) - first + 1;
        work.k_begin = next_step - first_step;
        work.k_end = min(first_step + k_tiles, end_step) - first_step;
        work.first_slot = first * cfg::cluster + rank;
        next_step += work.k_tiles();
    }

    __device__ __forceinline__ void place(Work& work, int tile) const {
        const int in_matrix = across_m * across_n;
        const TileCoord corner = raster_tile(tile % in_matrix, across_m, across_n);
        work.batch = tile / in_matrix;
        work.tile = tile * cfg::cluster_tiles + rank;
        work.m = (corner.m * cfg::cluster_m + rank % cfg::cluster_m) * cfg::tile_m;
        work.n = (corner.n * cfg::cluster_n + rank / cfg::cluster_m) * cfg::tile_n;
    }
};
