// Partial sums of tiles whose k is shared out among blocks: each leaves its own in the workspace, and the last to
// arrive adds them up, or with REDUCTION 1 a kernel after this one, or with REDUCTION 2 every block its share of the
// tile, of which it may keep its own part. All add in the order of the parts, so the result does not depend on who was last.
// Workspace with REDUCTION 1: D in Real for each part, in rows and columns of whole tiles. Else one word a tile and
// owner (zero before and after the launch), then slots of [owner][4 values][thread].
#pragma once
#include "ptx/shared.cuh"
#include "wgmma_ws/scheduler.cuh"
#include "wgmma_ws/stages.cuh"
#include "wgmma_ws/tally.cuh"

// Four sums as they travel.
template <class R> struct QuadOf { using type = float4; };
template <> struct QuadOf<int> { using type = int4; };
using Quad = QuadOf<Real>::type;

static_assert(!cfg::shared_out || cfg::split_k <= Tally::most_parts, "at most 16 blocks share a tile out");

// NOTE: with ping-pong either consumer may hold a part of a tile, so its counter and slots are not theirs.
struct Partials {
    static constexpr int owners = cfg::pingpong ? 1 : cfg::consumers;
    unsigned* counters;
    Quad* slots;
    int consumer, row0, col0; // where its share of a tile starts
    unsigned flag;            // shared address
    int batches;
    long long stride, batch_stride; // of D in whole tiles
    // Of 64 of wgmma's M, of a share of those, and of all that a consumer has.
    static constexpr int block_quads = Sums::pairs / 2, share_quads = cfg::own_width / 8, quads = cfg::blocks * block_quads;

    __device__ __forceinline__ Partials(void* workspace, const Scheduler& scheduler, int consumer_, unsigned flag_)
        : counters(static_cast<unsigned*>(workspace)), consumer(consumer_), flag(flag_) {
        const long long zeroed = cfg::reduce_after ? 0 : (scheduler.tiles() * 4LL * owners + 255) / 256 * 256;
        slots = reinterpret_cast<Quad*>(static_cast<char*>(workspace) + zeroed);
        row0 = cfg::pingpong ? 0 : consumer % cfg::consumers_m * cfg::rows;
        col0 = cfg::pingpong ? 0 : consumer / cfg::consumers_m * cfg::columns;
        (cfg::swap_ab ? row0 : col0) += scheduler.depth * cfg::own_width;
        batches = scheduler.batch;
        stride = scheduler.columns(), batch_stride = stride * scheduler.rows();
    }

    // True in the consumer that must finish the tile; `acc` then holds the whole sums.
    __device__ __forceinline__ bool reduce(Sums& acc, const Work& work) const {
        if (work.parts == 1) return true;
        if constexpr (cfg::reduce_after) {
            leave(acc, work);
            return false;
        }
        put(acc, work);
        if (!arrive(work)) return false;
        add_up(acc, work);
        return true;
    }

    // REDUCTION 2: calls finish(share) for each share of the tile that this consumer must finish, its sums in the
    // first `own_width` columns of `acc`. As a rule that is one, and its own part of it stays in registers.
    template <class Finish> __device__ __forceinline__ void share_out(Sums& acc, const Work& work, Finish finish) const {
        const Tally tally{counters + work.tile * owners + owner()};
        const Share own(acc, work.part);
        put(acc, work, cfg::keeps_share ? work.part : -1);
        unsigned shares = settled([&] { return tally.settle(work.part, work.parts); });
        if (shares == 0) {
            if constexpr (cfg::keeps_share) put_own(own, work);
            shares = settled([&] { return tally.give_up(work.part, work.parts); });
        }
        for (; shares; shares &= shares - 1) {
            const int share = __ffs(shares) - 1;
            add_up_share(acc, work, share, own);
            finish(share);
        }
        if (threadIdx.x % 128 == 0) tally.leave(work.parts);
    }

private:
    // A part of one of the shares of a tile.
    struct Share {
        Quad quads[cfg::blocks][share_quads];

        // NOTE: registers have no addresses, so each share is tried.
        __device__ __forceinline__ Share(const Sums& acc, int share) {
#pragma unroll
            for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
                for (int i = 0; i < share_quads; ++i)
#pragma unroll
                    for (int s = 0; s < cfg::split_k; ++s)
                        if (s == 0 || s == share) quads[block][i] = quad(acc, block, s * share_quads + i);
        }
    };

    static __device__ __forceinline__ Quad quad(const Sums& acc, int block, int i) {
        const Pair x = acc.pair(block, 2 * i), y = acc.pair(block, 2 * i + 1);
        return {x.x, x.y, y.x, y.y};
    }

    __device__ __forceinline__ void put_own(const Share& own, const Work& work) const {
        Quad* const to = slot(work, work.part) + work.part * share_quads * 128;
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int i = 0; i < share_quads; ++i) __stcg(to + (block * block_quads + i) * 128, own.quads[block][i]);
    }

    // Leaves all shares but one, or all.
    __device__ __forceinline__ void put(const Sums& acc, const Work& work, int kept = -1) const {
        Quad* const to = slot(work, work.part);
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int i = 0; i < block_quads; ++i)
                if (i / share_quads != kept) __stcg(to + (block * block_quads + i) * 128, quad(acc, block, i));
    }

    // NOTE: part is the slowest index, so that the kernel after need not know the tiles.
    __device__ __forceinline__ void leave(const Sums& acc, const Work& work) const {
        Real* const sums = reinterpret_cast<Real*>(slots) + work.part * batch_stride * batches + work.batch * batch_stride;
        const int x = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, y = threadIdx.x % 4 * 2;
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int p = 0; p < cfg::own_width / 4; ++p) {
                const int along = block * 64 + x + p % 2 * 8, across = y + p / 2 * 8;
                const int row = work.m + row0 + (cfg::swap_ab ? across : along);
                const int column = work.n + col0 + (cfg::swap_ab ? along : across);
                Real* const at = sums + row * stride + column;
                const Pair pair = acc.pair(block, p);
                struct alignas(2 * sizeof(Real)) Both { Real x, y; };
                if constexpr (cfg::swap_ab)
                    at[0] = pair.x, at[stride] = pair.y;
                else
                    *reinterpret_cast<Both*>(at) = Both{pair.x, pair.y};
            }
    }

    __device__ __forceinline__ int owner() const { return cfg::pingpong ? 0 : consumer; }

    // NOTE: with stream-K a block has at most two unfinished tiles: part 0 of one and a later part of
    // another, hence two slots; only part 0 is in the second.
    __device__ __forceinline__ Quad* slot(const Work& work, int part) const {
        const int number = cfg::stream_k ? 2 * (work.first_slot + part * cfg::cluster) + (part == 0) : work.first_slot + part;
        return slots + (static_cast<long long>(number) * owners + owner()) * (quads * 128) + threadIdx.x % 128;
    }

    // What one thread settles with other blocks once the sums that this consumer left are visible to all. NOTE: its fences
    // stand for all threads: barriers come before and after (PTX ISA, memory consistency model: causality order).
    template <class Settle> __device__ __forceinline__ unsigned settled(Settle settle) const {
        named_barrier_sync(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) {
            __threadfence();
            store_shared_32(flag, settle());
            __threadfence();
        }
        named_barrier_sync(1 + consumer, 128);
        return load_shared_32(flag);
    }

    // True in the last consumer of the tile.
    __device__ __forceinline__ bool arrive(const Work& work) const {
        return settled([&] {
            unsigned* const counter = counters + work.tile * owners + owner();
            const bool last = atomicAdd(counter, 1u) == work.parts - 1;
            if (last) *counter = 0;
            return unsigned(last);
        });
    }

    // A few values of every part at a time: enough loads in flight, and few registers beside `acc`.
    __device__ __forceinline__ void add_up(Sums& acc, const Work& work) const {
        constexpr int step = quads % 8 == 0 ? 8 : quads % 4 == 0 ? 4 : quads % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int base = 0; base < quads; base += step) {
            Quad sums[step] = {};
#pragma unroll 2
            for (int part = 0; part < work.parts; ++part) {
                const Quad* from = slot(work, part) + base * 128;
#pragma unroll
                for (int i = 0; i < step; ++i) add(sums[i], __ldcg(from + i * 128));
            }
#pragma unroll
            for (int i = 0; i < step; ++i)
                set_quad(acc, (base + i) * 2 / Sums::pairs, (base + i) * 2 % Sums::pairs, sums[i]);
        }
    }

    // All parts of a few values at once, for nothing else is in the registers.
    __device__ __forceinline__ void add_up_share(Sums& acc, const Work& work, int share, const Share& own) const {
        constexpr int step = share_quads % 4 == 0 ? 4 : share_quads % 2 == 0 ? 2 : 1;
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int base = 0; base < share_quads; base += step) {
                Quad sums[step] = {};
#pragma unroll
                for (int part = 0; part < cfg::split_k; ++part) {
                    const bool kept = cfg::keeps_share && share == work.part && part == work.part;
                    const Quad* from = slot(work, part) + (block * block_quads + share * share_quads + base) * 128;
#pragma unroll
                    for (int i = 0; i < step; ++i) add(sums[i], kept ? own.quads[block][base + i] : __ldcg(from + i * 128));
                }
#pragma unroll
                for (int i = 0; i < step; ++i) set_quad(acc, block, (base + i) * 2, sums[i]);
            }
    }

    static __device__ __forceinline__ void add(Quad& sum, const Quad& x) {
        sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    static __device__ __forceinline__ void set_quad(Sums& acc, int block, int pair, const Quad& sum) {
        acc.set_pair(block, pair, sum.x, sum.y);
        acc.set_pair(block, pair + 1, sum.z, sum.w);
    }
};
