// The -D interface of family wgmma_ws, on top of config.cuh.
//   SCHEDULE          0 cooperative: the consumers share a tile; 1 ping-pong: two consumers take turns
//   CONSUMERS_M, CONSUMERS_N   cooperative: warpgroups that split the rows and the columns of a tile
//   STAGES            k tiles in shared memory
//   IN_FLIGHT         groups of wgmma left running while the next k tile is awaited: 0 | 1
//   CLUSTER_M, CLUSTER_N       tiles of a cluster of blocks, which share operands by multicast
//   CLUSTER_K         blocks of a cluster that share the k of their tile: 1 | 2
//   STREAM_K          1: the last waves of tiles are cut in equal shares of k
//   SWAP_AB           1: wgmma computes D^T, so that TILE_N is its M and TILE_M its N
//   ACCUMULATE        0 f32 (s32 for integers), 1 f16
//   PROMOTE           8-bit floats: k tiles after which sums are promoted to f32; 0 never
//   EPILOGUE          0 direct, 1 staged and copied, 2 staged and stored by TMA, 3 the same while the next tile is
//                     multiplied
//   STORE_STAGES      staged boxes a consumer has in shared memory
//   HINT_A, HINT_B, HINT_D     L2 eviction: 0 normal, 1 first, 2 last; that of D where TMA stores it
//   REDUCTION         parts of a tile are added up by 0 the last of them to arrive, 1 a kernel of their own, 2 each
//                     of them its share of the tile
//   PREFETCH          k tiles of an operand that a block brings into the L2 while the kernel before ends
//   PREFETCH_A        which operand: 0 B, 1 A
//   PLACEMENT         0 clusters take work as they are numbered; 1 those of a GPC take neighbouring work, and the kernel
//                     lets none start before its end: only on an idle GPU are the blocks of the next placed as always
//   SNAKE_K           1: a block walks k backwards in every other unit of its work
//   EVEN_WAVES        1: a multiple of GROUP clusters work and the others idle, if that takes no more waves: in a band of GROUP
//                     a wave then is whole lines across
//   WHOLE_SECTORS     1: staged boxes of D are 16, 32 or 64 columns wide, of which TMA writes whole sectors of the L2; 0 as wide
//                     as possible
//   BEAT              clocks at whose multiples a block asks for its next stage: a power of two; 0 at once
//   REPACK            1: with the kernel that copies rows TMA cannot take
#pragma once
#include "config.cuh"
#include "ptx/tma.cuh"

namespace cfg {
constexpr bool pingpong = SCHEDULE == 1, stream_k = STREAM_K, swap_ab = SWAP_AB, accumulate_f16 = ACCUMULATE;
constexpr int consumers_m = CONSUMERS_M, consumers_n = CONSUMERS_N;
constexpr int consumers = pingpong ? 2 : consumers_m * consumers_n;
constexpr int threads = 128 * (consumers + 1);
constexpr int stages = STAGES, in_flight = IN_FLIGHT, promote = PROMOTE;
constexpr int cluster_m = CLUSTER_M, cluster_n = CLUSTER_N, cluster_k = CLUSTER_K;
constexpr int cluster_tiles = cluster_m * cluster_n, cluster = cluster_tiles * cluster_k;
constexpr bool staged = EPILOGUE != 0, tma_store = EPILOGUE >= 2, deferred = EPILOGUE == 3;
constexpr int store_stages = STORE_STAGES;
constexpr bool reduce_after = REDUCTION == 1, shared_out = REDUCTION == 2;
constexpr int prefetch = PREFETCH;
constexpr bool prefetch_a = PREFETCH_A;
constexpr bool by_gpc = PLACEMENT == 1, snake_k = SNAKE_K, even_waves = EVEN_WAVES, whole_sectors = WHOLE_SECTORS;
constexpr unsigned beat = BEAT;
constexpr CacheHint hint_a = CacheHint(HINT_A), hint_b = CacheHint(HINT_B), hint_d = CacheHint(HINT_D);

// What one consumer computes, and the accumulators for it: blocks of 64 along wgmma's M, width along its N.
constexpr int rows = tile_m / consumers_m, columns = tile_n / consumers_n;
constexpr int blocks = (swap_ab ? columns : rows) / 64, width = swap_ab ? rows : columns;
constexpr int own_width = width / cluster_k / (shared_out ? split_k : 1); // what it finishes of that
constexpr int k_steps = tile_k * int(sizeof(In)) / 32;

// Registers of a thread: 65,536 are shared out among the roles in steps of 8. One consumer needs no more
// than the 255 that a thread can have.
constexpr int sums = blocks * width / 2 / (accumulate_f16 ? 2 : 1) * (promote > 0 ? 2 : 1);
constexpr bool large = sums + (deferred ? blocks * width / 4 : 0) > (deferred ? 176 : 192);
constexpr int producer_registers = consumers == 3 ? 32 : large ? 24 : 40;
constexpr int consumer_registers = consumers == 3 ? 160 : large ? 240 : 232;

// The consumers of a tile that is shared out multiply its last k tiles one after the other: the first leaves its sums while
// the second multiplies, which takes as long as some 7 k tiles of 128 bytes. The ring holds them all.
constexpr bool in_turns = shared_out && !pingpong && consumers == 2 && promote == 0;
constexpr int leaving = 7 * 128 / (tile_k * int(sizeof(In)));
constexpr int k_tiles_in_turn = leaving < stages ? leaving : stages - 1;
} // namespace cfg

template <class T> struct Is16Bit { static constexpr bool value = false; };
template <> struct Is16Bit<f16> { static constexpr bool value = true; };
template <> struct Is16Bit<bf16> { static constexpr bool value = true; };
template <class T> struct IsFloat8 { static constexpr bool value = false; };
template <> struct IsFloat8<e4m3> { static constexpr bool value = true; };
template <> struct IsFloat8<e5m2> { static constexpr bool value = true; };
template <class T> struct IsF16 { static constexpr bool value = false; };
template <> struct IsF16<f16> { static constexpr bool value = true; };
template <class T> struct IsInteger { static constexpr bool value = false; };
template <> struct IsInteger<s8> { static constexpr bool value = true; };
template <> struct IsInteger<u8> { static constexpr bool value = true; };

static_assert(sizeof(In) <= 2, "wgmma multiplies 16-bit and 8-bit elements");
static_assert(SCHEDULE == 0 || SCHEDULE == 1, "SCHEDULE is 0 (cooperative) or 1 (ping-pong)");
static_assert(!cfg::pingpong || (cfg::consumers_m == 1 && cfg::consumers_n == 1), "ping-pong consumers do not share a tile");
static_assert(cfg::consumers >= 1 && cfg::consumers <= 3, "1 .. 3 consumers");
static_assert((cfg::swap_ab ? cfg::columns : cfg::rows) % 64 == 0 && cfg::blocks >= 1,
              "a consumer's share along the M of wgmma is a multiple of 64");
static_assert(cfg::width % 8 == 0 && cfg::width >= 8 && cfg::width <= 256,
              "a consumer's share along the N of wgmma is a multiple of 8 up to 256");
static_assert(!IsInteger<In>::value || cfg::width <= 32 || cfg::width % 16 == 0, "wgmma of integers has N in multiples of 16 above 32");
static_assert(cfg::tile_m % cfg::consumers_m == 0 && cfg::tile_n % cfg::consumers_n == 0, "consumers share the tile evenly");
static_assert(cfg::tile_m <= 256 && cfg::tile_n <= 256, "a TMA box has at most 256 rows");
static_assert(cfg::tile_k * sizeof(In) == 128 || cfg::tile_k * sizeof(In) == 256, "TILE_K is 128 or 256 bytes");
static_assert(cfg::stages >= 2 && cfg::stages <= 16, "STAGES is in 2 .. 16");
static_assert(IN_FLIGHT == 0 || IN_FLIGHT == 1, "IN_FLIGHT is 0 or 1");
static_assert(cfg::cluster_m >= 1 && cfg::cluster_n >= 1 && cfg::cluster <= 8, "a cluster has at most 8 blocks");
static_assert(cfg::cluster_k == 1 || cfg::cluster_k == 2, "CLUSTER_K is 1 or 2");
static_assert(cfg::cluster_k == 1 || cfg::width % 32 == 0, "the blocks of a cluster finish halves of 16 columns or a multiple");
static_assert(cfg::cluster_k == 1 || (!cfg::stream_k && (cfg::split_k == 1 || cfg::reduce_after)),
              "with CLUSTER_K the parts of a tile are added up by a kernel after");
static_assert(!cfg::stream_k || cfg::split_k == 1, "stream-K and split-K exclude each other");
static_assert(cfg::promote == 0 || IsFloat8<In>::value, "only sums of 8-bit floats are promoted");
static_assert(!cfg::accumulate_f16 || IsF16<In>::value, "f16 accumulation needs f16 inputs");
static_assert(!cfg::staged || Is16Bit<Out>::value, "stmatrix stages 16-bit elements");
static_assert(EPILOGUE >= 0 && EPILOGUE <= 3, "EPILOGUE is in 0 .. 3");
static_assert(EPILOGUE != 1 || cfg::swap_ab || cfg::own_width % 16 == 0, "a box that is copied is 16 columns wide, or 32 or 64");
static_assert(!cfg::deferred || (!cfg::pingpong && cfg::split_k * cfg::cluster_k == 1 && !cfg::stream_k && cfg::promote == 0),
              "only whole tiles that the consumers share are stored while the next is multiplied");
static_assert(!cfg::deferred || !cfg::has_c || !cfg::has_bias, "a tile that reads C and a bias is stored at once");
static_assert(!cfg::tma_store || cfg::align_d == 16, "TMA stores rows that are multiples of 16 bytes");
static_assert(cfg::store_stages >= 1 && cfg::store_stages <= 4, "STORE_STAGES is in 1 .. 4");
static_assert(!cfg::shared_out || (cfg::split_k > 1 && cfg::cluster_k == 1), "blocks of different k share a tile out");
static_assert(!cfg::shared_out || cfg::width % (8 * cfg::split_k) == 0, "shares are 8 of wgmma's N or a multiple");
static_assert(REDUCTION >= 0 && REDUCTION <= 2, "REDUCTION is in 0 .. 2");
static_assert(!cfg::reduce_after || (cfg::split_k > 1 && !cfg::stream_k), "the kernel after adds up the parts of split-K");
static_assert(PREFETCH >= 0 && PREFETCH <= 32, "PREFETCH is in 0 .. 32: one lane a k tile");
static_assert(PLACEMENT == 0 || PLACEMENT == 1, "PLACEMENT is 0 (free) or 1 (by GPC)");
static_assert(!cfg::by_gpc || cfg::cluster > 1, "single blocks are not placed alike twice");
static_assert(!cfg::by_gpc || cfg::prefetch == 0, "kernels that do not overlap have no time to fetch ahead");
static_assert(SNAKE_K == 0 || SNAKE_K == 1, "SNAKE_K is 0 or 1");
static_assert(EVEN_WAVES == 0 || EVEN_WAVES == 1, "EVEN_WAVES is 0 or 1");
static_assert(WHOLE_SECTORS == 0 || WHOLE_SECTORS == 1, "WHOLE_SECTORS is 0 or 1");
static_assert(!cfg::whole_sectors || (cfg::tma_store && !cfg::swap_ab && cfg::own_width % 16 == 0),
              "boxes of whole sectors are stored by TMA and divide what a consumer finishes");
static_assert(BEAT >= 0 && BEAT <= 4096 && (BEAT & (BEAT - 1)) == 0, "BEAT is 0 or a power of two, 4096 at most");
static_assert(HINT_A >= 0 && HINT_A <= 2 && HINT_B >= 0 && HINT_B <= 2 && HINT_D >= 0 && HINT_D <= 2, "hints are 0, 1 or 2");
