// The -D interface of family wgmma_ws, on top of common/config.cuh, and the shared memory that follows from it.
//   SCHEDULE          0 cooperative: the consumers compute a tile together; 1 ping-pong: two consumers alternate tiles
//   CONSUMERS_M, CONSUMERS_N   cooperative: consumer warpgroups along the rows and along the columns of a tile
//   SWAP_AB           1: wgmma computes D^T, so that TILE_N is its M and TILE_M its N
//   ACCUMULATE        0 f32 (s32 for integers), 1 f16
//   PROMOTE           8-bit floats: k tiles between promotions of the accumulators to f32; 0 never
//   STAGES            k tiles in shared memory
//   CLUSTER_M, CLUSTER_N       tiles of a cluster, whose CTAs share operands by multicast
//   CLUSTER_K         CTAs of a cluster that split the k of their tile: 1 | 2
//   REDUCTION         SPLIT_K > 1: a tile's partials are added up by 1 a kernel after this one, 2 all CTAs of the tile, a slice
//                     each; else 0
//   EPILOGUE          0 direct, 1 staged and copied, 2 staged and stored by TMA, 3 the same, overlapped with the next tile
//   STORE_STAGES      staged epilogue subtiles of a consumer
//   SECTOR_ALIGNED_STORE   1: subtiles are 16, 32 or 64 columns wide, so that TMA stores whole L2 sectors; 0: as wide as possible
//   HINT_A, HINT_B, HINT_D     L2 eviction priority: 0 normal, 1 first, 2 last; that of D where TMA stores it
//   PREFETCH          k tiles of one operand that a CTA prefetches into the L2 while the previous kernel ends
//   PREFETCH_A        the operand: 0 B, 1 A
//   LOAD_INTERVAL     clocks at whose multiples a producer loads the next stage: a power of two; 0 at once
//   CTA_ORDER         0 work tiles by the number of the cluster; 1 neighbouring work tiles for the clusters of a GPC. With 1 the
//                     next kernel starts after this one has ended: clusters get the same SMs again only on an idle GPU
//   REVERSE_K         1: every other work tile of a CTA runs k backwards
//   REPACK            1: with the kernel that copies rows that TMA cannot take
#pragma once
#include "common/config.cuh"
#include "common/pipeline.cuh"
#include "common/ptx/control.cuh"
#include "common/ptx/tma.cuh"
#include "common/smem_tile.cuh"
#include "common/wgmma.cuh"

namespace cfg {
constexpr bool pingpong = SCHEDULE == 1, swap_ab = SWAP_AB, accumulate_f16 = ACCUMULATE;
constexpr int consumers_m = CONSUMERS_M, consumers_n = CONSUMERS_N;
constexpr int consumers = pingpong ? 2 : consumers_m * consumers_n;
constexpr int threads = 128 * (consumers + 1);
constexpr int stages = STAGES, promote = PROMOTE;
constexpr int cluster_m = CLUSTER_M, cluster_n = CLUSTER_N, cluster_k = CLUSTER_K;
constexpr int cluster_tiles = cluster_m * cluster_n, cluster = cluster_tiles * cluster_k;
constexpr bool reduce_kernel = REDUCTION == 1, reduce_scatter = REDUCTION == 2;
constexpr bool staged = EPILOGUE != 0, tma_store = EPILOGUE >= 2, overlapped_store = EPILOGUE == 3;
constexpr int store_stages = STORE_STAGES;
// TMA loads C into the stages in which D is staged, ahead of the epilogue. Not with split-K: a kernel after reads C, or it is
// known late which slice a CTA finishes. Not with SWAP_AB, whose tiles of D are small: 6 % slower at 16 x 4096 x 4096.
#define LOADS_C (HAS_C && EPILOGUE >= 2 && REDUCTION == 0 && !SWAP_AB)
constexpr bool loads_c = LOADS_C;
constexpr bool sector_aligned_store = SECTOR_ALIGNED_STORE;
constexpr CacheHint hint_a = CacheHint(HINT_A), hint_b = CacheHint(HINT_B), hint_d = CacheHint(HINT_D);
constexpr int prefetch = PREFETCH;
constexpr bool prefetch_a = PREFETCH_A;
constexpr unsigned load_interval = LOAD_INTERVAL;
constexpr bool gpc_order = CTA_ORDER == 1, reverse_k = REVERSE_K;

// The warpgroup tile, rows x columns of D that one consumer computes: wgmma atoms of 64 along wgmma's M by wgmma_n along its N.
constexpr int warpgroup_m = tile_m / consumers_m, warpgroup_n = tile_n / consumers_n;
constexpr int atoms = (swap_ab ? warpgroup_n : warpgroup_m) / 64, wgmma_n = swap_ab ? warpgroup_m : warpgroup_n;
// CTAs that split the k of a tile finish a slice of the warpgroup tile each: slice_n along wgmma's N.
constexpr int slice_n = wgmma_n / cluster_k / (reduce_scatter ? split_k : 1);
constexpr int k_steps = tile_k * int(sizeof(In)) / 32;

// Producer and consumers divide the 65,536 registers of an SM in steps of 8 a thread. One consumer needs no more than the 255
// that a thread can have.
constexpr int accumulator_registers = atoms * wgmma_n / 2 / (accumulate_f16 ? 2 : 1) * (promote > 0 ? 2 : 1);
constexpr bool large = accumulator_registers + (overlapped_store ? atoms * wgmma_n / 4 : 0) > (overlapped_store ? 176 : 192);
constexpr int producer_registers = consumers == 3 ? 32 : large ? 24 : 40;
constexpr int consumer_registers = consumers == 3 ? 160 : large ? 240 : 232;

// With reduce_scatter two consumers multiply their last k tiles one after the other: the first stores its partials while the
// second multiplies, which takes as long as some 7 k tiles of 128 bytes. The ring holds them all.
constexpr bool staggered = reduce_scatter && !pingpong && consumers == 2 && promote == 0;
constexpr int store_k_tiles = 7 * 128 / (tile_k * int(sizeof(In)));
constexpr int staggered_k_tiles = store_k_tiles < stages ? store_k_tiles : stages - 1;
} // namespace cfg

template <class T, class... Types> constexpr bool is_any = false;
template <class T, class First, class... Rest> constexpr bool is_any<T, First, Rest...> = is_any<T, Rest...>;
template <class T, class... Rest> constexpr bool is_any<T, T, Rest...> = true;

static_assert(sizeof(In) <= 2, "wgmma multiplies 16-bit and 8-bit elements");
static_assert(SCHEDULE == 0 || SCHEDULE == 1, "SCHEDULE is 0 (cooperative) or 1 (ping-pong)");
static_assert(!cfg::pingpong || (cfg::consumers_m == 1 && cfg::consumers_n == 1), "a ping-pong consumer computes a whole tile");
static_assert(cfg::consumers >= 1 && cfg::consumers <= 3, "1 .. 3 consumers");
static_assert(cfg::tile_m % cfg::consumers_m == 0 && cfg::tile_n % cfg::consumers_n == 0, "the warpgroup tiles of a tile are equal");
static_assert((cfg::swap_ab ? cfg::warpgroup_n : cfg::warpgroup_m) % 64 == 0 && cfg::atoms >= 1,
              "the warpgroup tile is a multiple of 64 along the M of wgmma");
static_assert(cfg::wgmma_n % 8 == 0 && cfg::wgmma_n >= 8 && cfg::wgmma_n <= 256,
              "the warpgroup tile is a multiple of 8 up to 256 along the N of wgmma");
static_assert(!is_any<In, s8, u8> || cfg::wgmma_n <= 32 || cfg::wgmma_n % 16 == 0, "wgmma of integers has N in multiples of 16 above 32");
static_assert(cfg::tile_m <= 256 && cfg::tile_n <= 256, "a TMA box has at most 256 rows");
static_assert(cfg::tile_k * sizeof(In) == 128 || cfg::tile_k * sizeof(In) == 256, "TILE_K is 128 or 256 bytes");
static_assert(cfg::stages >= 2 && cfg::stages <= 16, "STAGES is in 2 .. 16");
static_assert(cfg::cluster_m >= 1 && cfg::cluster_n >= 1 && cfg::cluster <= 8, "a cluster has at most 8 CTAs");
static_assert(cfg::cluster_k == 1 || cfg::cluster_k == 2, "CLUSTER_K is 1 or 2");
static_assert(cfg::cluster_k == 1 || cfg::wgmma_n % 32 == 0, "with CLUSTER_K a CTA's slice is a multiple of 16 along the N of wgmma");
static_assert(cfg::cluster_k == 1 || cfg::split_k == 1 || cfg::reduce_kernel,
              "with CLUSTER_K the partials of split-K are added up by a kernel after");
static_assert(cfg::promote == 0 || is_any<In, e4m3, e5m2>, "only accumulators of 8-bit floats are promoted");
static_assert(!cfg::accumulate_f16 || is_any<In, f16>, "f16 accumulation needs f16 inputs");
static_assert(REDUCTION >= 0 && REDUCTION <= 2, "REDUCTION is in 0 .. 2");
static_assert((REDUCTION != 0) == (cfg::split_k > 1), "the partials of split-K are added up, and only those");
static_assert(!cfg::reduce_scatter || cfg::cluster_k == 1, "reduce_scatter adds up the partials of single CTAs");
static_assert(!cfg::reduce_scatter || cfg::wgmma_n % (8 * cfg::split_k) == 0, "slices are a multiple of 8 along the N of wgmma");
static_assert(EPILOGUE >= 0 && EPILOGUE <= 3, "EPILOGUE is in 0 .. 3");
static_assert(!cfg::staged || is_any<Out, f16, bf16>, "stmatrix stages 16-bit elements");
static_assert(EPILOGUE != 1 || cfg::swap_ab || cfg::slice_n % 16 == 0, "a subtile that is copied is 16, 32 or 64 columns wide");
static_assert(!cfg::overlapped_store || (!cfg::pingpong && cfg::split_k * cfg::cluster_k == 1 && cfg::promote == 0),
              "only a cooperative tile of the whole k, in one set of accumulators, is stored while the next is multiplied");
static_assert(!cfg::overlapped_store || !cfg::has_c, "a tile that reads C is stored at once: C takes the stages");
static_assert(!cfg::tma_store || cfg::align_d == 16, "TMA stores rows that are multiples of 16 bytes");
static_assert(cfg::store_stages >= 1 && cfg::store_stages <= 4, "STORE_STAGES is in 1 .. 4");
static_assert(SECTOR_ALIGNED_STORE == 0 || SECTOR_ALIGNED_STORE == 1, "SECTOR_ALIGNED_STORE is 0 or 1");
static_assert(!cfg::sector_aligned_store || (cfg::tma_store && !cfg::swap_ab && cfg::slice_n % 16 == 0),
              "sector-aligned subtiles are stored by TMA and divide a slice");
static_assert(HINT_A >= 0 && HINT_A <= 2 && HINT_B >= 0 && HINT_B <= 2 && HINT_D >= 0 && HINT_D <= 2, "hints are 0, 1 or 2");
static_assert(PREFETCH >= 0 && PREFETCH <= 32, "PREFETCH is in 0 .. 32: one lane a k tile");
static_assert(LOAD_INTERVAL >= 0 && LOAD_INTERVAL <= 4096 && (LOAD_INTERVAL & (LOAD_INTERVAL - 1)) == 0,
              "LOAD_INTERVAL is 0 or a power of two, 4096 at most");
static_assert(CTA_ORDER == 0 || CTA_ORDER == 1, "CTA_ORDER is 0 (free) or 1 (by GPC)");
static_assert(!cfg::gpc_order || cfg::cluster > 1, "the hardware does not place single CTAs deterministically");
static_assert(!cfg::gpc_order || cfg::prefetch == 0, "kernels that do not overlap have no time to prefetch");
static_assert(REVERSE_K == 0 || REVERSE_K == 1, "REVERSE_K is 0 or 1");

// CTAs with the same rows of D share A, CTAs with the same columns share B.
using TileA = WgmmaTile<In, cfg::tile_m, cfg::tile_k, !cfg::a_transposed, cfg::cluster_n>;
using TileB = WgmmaTile<In, cfg::tile_n, cfg::tile_k, cfg::b_transposed, cfg::cluster_m>;
using Stages = Ring<cfg::stages, TileA::bytes, TileB::bytes>;
using RingState = PipelineState<cfg::stages>;
using Accumulator = WgmmaAccumulator<cfg::atoms, cfg::wgmma_n, cfg::accumulate_f16,
                                     cfg::swap_ab ? !cfg::b_transposed : cfg::a_transposed,
                                     cfg::swap_ab ? cfg::a_transposed : !cfg::b_transposed>;

// Where a consumer's warpgroup tile starts, or the slice of it that the consumer finishes, in the tile of the CTA.
struct WarpgroupOrigin {
    int row, column;

    explicit __device__ __forceinline__ WarpgroupOrigin(int consumer) {
        row = cfg::pingpong ? 0 : consumer % cfg::consumers_m * cfg::warpgroup_m;
        column = cfg::pingpong ? 0 : consumer / cfg::consumers_m * cfg::warpgroup_n;
    }
    __device__ __forceinline__ void move_to_slice(int slice) { (cfg::swap_ab ? row : column) += slice * cfg::slice_n; }
};

// An epilogue subtile: 64 along wgmma's M by the widest extent along its N that divides a slice, so that there are few of them.
// With SWAP_AB it is up to 64 rows of 64 elements, else 64 rows of `subtile_n`: 16, 32 or 64 elements in TMA's swizzle of that
// many bytes or, if TMA stores them, an odd number of 16-byte chunks, whose rows fall on different banks without a swizzle.
constexpr __device__ int widest_subtile(int slice_n) {
    int widest = 8;
    for (int n = 16; n <= 104; n += 8) {
        const bool swizzled = n == 16 || n == 32 || n == 64, odd = n / 8 % 2;
        const bool possible = cfg::swap_ab ? n <= 64 : swizzled || (cfg::tma_store && odd && !cfg::sector_aligned_store);
        if (slice_n % n == 0 && possible) widest = n;
    }
    return widest;
}
constexpr int subtile_n = widest_subtile(cfg::slice_n);
constexpr int subtile_rows = cfg::swap_ab ? subtile_n : 64, subtile_columns = cfg::swap_ab ? 64 : subtile_n;
using Subtile = SmemTile<subtile_rows, subtile_columns * 2, SmemLayout::xor_>;
constexpr int staging_bytes = cfg::staged ? cfg::store_stages * Subtile::bytes : 0; // of one consumer

// With CLUSTER_K a consumer receives its slice of the accumulators of the other CTA.
constexpr int exchange_bytes = cfg::cluster_k == 1 ? 0 : cfg::atoms * cfg::slice_n * 64 * int(sizeof(ElementAccumulator));

// Shared memory, from a multiple of 1024 bytes on:
//   consumers x store_stages x Subtile       C that TMA has loaded, then staged D
//   consumers x exchange_bytes               accumulators received
//   Stages                                   operands and their barriers (common/pipeline.cuh)
//   consumers x 2 x 8                        barriers of the exchange
//   consumers x store_stages x 8             barriers of C, if TMA loads it
//   consumers x 4                            what thread 0 of a consumer tells the others
struct SharedMemory {
    Stages ring;

    static constexpr int before_ring = cfg::consumers * (staging_bytes + exchange_bytes);
    static_assert(staging_bytes % 1024 == 0 && exchange_bytes % 1024 == 0, "subtiles and the ring start at multiples of 1024 bytes");

    explicit __device__ __forceinline__ SharedMemory(unsigned start) : ring{start + before_ring} {}
    __device__ __forceinline__ unsigned subtile(int consumer, int stage) const {
        return ring.base - before_ring + consumer * staging_bytes + stage * Subtile::bytes;
    }
    __device__ __forceinline__ unsigned exchange(int consumer) const {
        return ring.base - before_ring + cfg::consumers * staging_bytes + consumer * exchange_bytes;
    }
    // Barriers: the accumulators of the other CTA have arrived; the other CTA has read ours.
    __device__ __forceinline__ unsigned received(int consumer) const { return ring.base + Stages::bytes + consumer * 16; }
    __device__ __forceinline__ unsigned taken(int consumer) const { return received(consumer) + 8; }
    // Barriers: C has arrived in a stage.
    static constexpr int c_barriers = cfg::loads_c ? cfg::store_stages : 0;
    __device__ __forceinline__ unsigned c_loaded(int consumer, int stage) const {
        return received(cfg::consumers) + (consumer * c_barriers + stage) * 8;
    }
    __device__ __forceinline__ unsigned word(int consumer) const { return c_loaded(cfg::consumers, 0) + consumer * 4; }

    // Called by one lane; `readers` arrivals empty a stage.
    __device__ __forceinline__ void init(int readers) const {
        if constexpr (cfg::cluster_k > 1)
            for (int consumer = 0; consumer < cfg::consumers; ++consumer) {
                mbarrier_init(received(consumer), 1);
                mbarrier_init(taken(consumer), 4);
            }
        for (int barrier = 0; barrier < cfg::consumers * c_barriers; ++barrier) mbarrier_init(c_loaded(0, barrier), 1);
        ring.init(readers); // last: its fence is for the other barriers as well
    }
};
