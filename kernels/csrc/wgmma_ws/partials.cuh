// Partial sums of tiles whose k is shared out among blocks: each leaves its own in the workspace, and the last to
// arrive adds them up, or with REDUCTION 1 a kernel after this one, or with REDUCTION 2 every block its share of the
// tile. All add in the order of the parts, so the result does not depend on who was last.
// Workspace with REDUCTION 1: D in Real for each part, in rows and columns of whole tiles. Else a counter or a tally for each
// tile and owner (zero before and after the launch), then slots of [owner][4 values][thread].
#pragma once
#include "ptx/shared.cuh"
#include "wgmma_ws/scheduler.cuh"
#include "wgmma_ws/stages.cuh"
#include "wgmma_ws/tally.cuh"

// Four sums as they travel.
template <class R> struct QuadOf { using type = float4; };
template <> struct QuadOf<int> { using type = int4; };
using Quad = QuadOf<Real>::type;

// NOTE: with ping-pong either consumer may hold a part of a tile, so its counter and slots are not theirs.
struct Partials {
    static constexpr int owners = cfg::pingpong ? 1 : cfg::consumers;
    static constexpr int counter_bytes = cfg::shared_out ? tally_bytes : sizeof(unsigned);
    char* counters;
    Quad* slots;
    int consumer, row0, col0; // where its share of a tile starts
    unsigned flag;            // shared address
    int batches;
    long long stride, batch_stride; // of D in whole tiles
    // Of 64 of wgmma's M, of a share of those, and of all that a consumer has.
    static constexpr int block_quads = Sums::pairs / 2, share_quads = cfg::own_width / 8, quads = cfg::blocks * block_quads;

    __device__ __forceinline__ Partials(void* workspace, const Scheduler& scheduler, int consumer_, unsigned flag_)
        : counters(static_cast<char*>(workspace)), consumer(consumer_), flag(flag_) {
        const long long zeroed = cfg::reduce_after ? 0 : (1LL * scheduler.tiles() * owners * counter_bytes + 255) / 256 * 256;
        slots = reinterpret_cast<Quad*>(counters + zeroed);
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
        put_share(acc, work, 0); // of one
        if (!arrive(work)) return false;
        add_up(acc, work);
        return true;
    }

    // REDUCTION 2: calls finish(share) for each share of the tile that this consumer must finish, its sums in the
    // first `own_width` columns of `acc`. As a rule that is one, and its own part of it never leaves the registers.
    template <class Finish> __device__ __forceinline__ void share_out(Sums& acc, const Work& work, Finish finish) const {
        const Tally<cfg::split_k> tally(counter(work));
#pragma unroll
        for (int share = 0; share < cfg::split_k; ++share)
            if (share != work.part) put_share(acc, work, share);
        unsigned shares = settled([&] { return tally.settle(work.part); });
        const bool own_alone = shares == 1u << work.part;
        if (!own_alone) {
#pragma unroll
            for (int share = 0; share < cfg::split_k; ++share)
                if (share == work.part) put_share(acc, work, share);
            if (!shares) shares = settled([&] { return tally.give_up(work.part); });
        }
        const unsigned departed_before = threadIdx.x % 128 == 0 ? tally.depart() : 0;
        for (; shares; shares &= shares - 1) {
            const int share = __ffs(shares) - 1;
            fetch_parts(acc, work, share, own_alone ? work.part : -1);
            add_up_parts(acc);
            finish(share);
        }
        if (threadIdx.x % 128 == 0) tally.clear(departed_before);
    }

private:
    static __device__ __forceinline__ Quad quad(const Sums& acc, int block, int i) {
        const Pair x = acc.pair(block, 2 * i), y = acc.pair(block, 2 * i + 1);
        return {x.x, x.y, y.x, y.y};
    }

    __device__ __forceinline__ void put_share(const Sums& acc, const Work& work, int share) const {
        Quad* const to = slot(work, work.part);
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int i = share * share_quads; i < (share + 1) * share_quads; ++i)
                __stcg(to + (block * block_quads + i) * 128, quad(acc, block, i));
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

    __device__ __forceinline__ void* counter(const Work& work) const {
        return counters + (1LL * work.tile * owners + owner()) * counter_bytes;
    }

    // What one thread settles with other blocks about the sums that this consumer left. NOTE: it speaks for all threads:
    // barriers come before and after (PTX ISA, memory consistency model: causality order).
    template <class Settle> __device__ __forceinline__ unsigned settled(Settle settle) const {
        named_barrier_sync(1 + consumer, 128);
        if (threadIdx.x % 128 == 0) store_shared_32(flag, settle());
        named_barrier_sync(1 + consumer, 128);
        return load_shared_32(flag);
    }

    // True in the last consumer of the tile.
    __device__ __forceinline__ bool arrive(const Work& work) const {
        return settled([&] {
            auto* const arrived = static_cast<unsigned*>(counter(work));
            const bool last = atomic_add_acq_rel(arrived, 1u) == work.parts - 1;
            if (last) *arrived = 0;
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

    // All parts of a share but one, or all, in the places of the shares of `acc`, of which there are as many: their sums have
    // been left, but for the part that is kept, which is where it belongs.
    __device__ __forceinline__ void fetch_parts(Sums& acc, const Work& work, int share, int kept) const {
#pragma unroll
        for (int part = 0; part < cfg::split_k; ++part) {
            if (part == kept) continue;
            const Quad* const from = slot(work, part) + share * share_quads * 128;
#pragma unroll
            for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
                for (int i = 0; i < share_quads; ++i)
                    set_quad(acc, block, 2 * (part * share_quads + i), __ldcg(from + (block * block_quads + i) * 128));
        }
    }
    __device__ __forceinline__ void add_up_parts(Sums& acc) const {
#pragma unroll
        for (int block = 0; block < cfg::blocks; ++block)
#pragma unroll
            for (int i = 0; i < share_quads; ++i) {
                Quad sum = {};
#pragma unroll
                for (int part = 0; part < cfg::split_k; ++part) add(sum, quad(acc, block, part * share_quads + i));
                set_quad(acc, block, 2 * i, sum);
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
