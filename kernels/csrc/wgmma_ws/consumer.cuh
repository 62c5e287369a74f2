// Consumer: a warpgroup that multiplies what the producer brings in and hands the sums to the epilogue.
#pragma once
#include "ptx/elect.cuh"
#include "ptx/warpgroup.cuh"
#include "wgmma_ws/epilogue.cuh"
#include "wgmma_ws/exchange.cuh"
#include "wgmma_ws/partials.cuh"
#include "wgmma_ws/scheduler.cuh"

class Consumer {
public:
    __device__ __forceinline__ Consumer(const SharedMemory& smem_, int consumer_) : smem(smem_), exchange(smem_, consumer_), consumer(consumer_) {
        row = cfg::pingpong ? 0 : consumer % cfg::consumers_m * cfg::rows;
        column = cfg::pingpong ? 0 : consumer / cfg::consumers_m * cfg::columns;
        const unsigned long long a = TileA::descriptor(smem.ring.tile_a(0)) + TileA::extent_offset(row);
        const unsigned long long b = TileB::descriptor(smem.ring.tile_b(0)) + TileB::extent_offset(column);
        x = cfg::swap_ab ? b : a, y = cfg::swap_ab ? a : b;
        own_row = row, own_column = column;
        (cfg::swap_ab ? own_row : own_column) += neighbours.depth * cfg::own_width;
    }

    __device__ __forceinline__ void run(Scheduler scheduler, Store store, const Partials& partials, long long stride_c,
                                        long long stride_d) {
        const Out* const c = store.epilogue.c;
        Out* const d = store.epilogue.d;
        Sums acc;
        Work work;
        if (cfg::pingpong && consumer == 1) {
            pass_turn();
            skip_other(scheduler);
        }
        while (scheduler.next(work)) {
            if constexpr (cfg::pingpong) await_turn();
            if constexpr (cfg::promote > 0)
                multiply_promoted(acc, work.k_tiles());
            else
                multiply(acc, work.k_tiles(), store);
            if constexpr (cfg::pingpong) pass_turn();
            if constexpr (cfg::promote == 0) finish(acc, work.k_tiles());
            if constexpr (cfg::cluster_k > 1) exchange.run(acc);
            const auto finish_share = [&](int share) {
                store.row0 = work.m + own_row, store.col0 = work.n + own_column, store.batch = work.batch;
                (cfg::swap_ab ? store.row0 : store.col0) += share * cfg::own_width;
                store.epilogue.d = d + work.batch * stride_d;
                if constexpr (cfg::has_c) store.epilogue.c = c + work.batch * stride_c;
                if constexpr (cfg::deferred)
                    store.keep(acc);
                else
                    store.run(acc, smem);
            };
            if constexpr (cfg::shared_out)
                partials.share_out(acc, work, finish_share);
            else if (partials.reduce(acc, work))
                finish_share(0);
            if (cfg::pingpong && !skip_other(scheduler)) break;
        }
        if constexpr (cfg::deferred) {
#pragma unroll
            for (int box = 0; box < Store::boxes; ++box) store.store_kept(smem, box);
        }
        if constexpr (cfg::cluster_k > 1) exchange.leave();
        if (cfg::tma_store && threadIdx.x % 128 == 0) tma_store_wait<0>();
    }

private:
    SharedMemory smem;
    Neighbours neighbours;
    Exchange exchange;
    int consumer, row, column;     // where its share of a tile starts
    int own_row, own_column;       // and what it finishes of that
    unsigned long long x, y; // descriptors in stage 0 of wgmma's A and B
    Place slot;

    // Ping-pong: the consumers multiply in turns, so that the epilogue of one hides behind the other's. NOTE: barrier 0 is the
    // start's, 1 to 3 are those of the consumers, 4 and 5 of turns.
    __device__ __forceinline__ void await_turn() const { named_barrier_sync(4 + consumer, 256); }
    __device__ __forceinline__ void pass_turn() const { named_barrier_arrive(5 - consumer, 256); }
    __device__ __forceinline__ bool skip_other(Scheduler& scheduler) {
        Work other;
        if (!scheduler.next(other)) return false;
        slot.advance(other.k_tiles());
        return true;
    }

    // NOTE: a stage is released only when wgmma_wait has said that its wgmma are done; that they were
    // issued is not enough.
    __device__ __forceinline__ void multiply(Sums& acc, int k_tiles, const Store& store) {
        int index = 0;
        if constexpr (cfg::deferred) {
            // The tile before leaves box by box, each behind the products of one k tile.
#pragma unroll
            for (int box = 0; box < Store::boxes; ++box) {
                if (index < k_tiles) multiply_next(acc, index++);
                store.store_kept(smem, box);
            }
        }
        if constexpr (cfg::in_turns) {
            while (index < k_tiles - cfg::k_tiles_in_turn) multiply_next(acc, index++);
            if (consumer == 1) meet_other();
        }
        while (index < k_tiles) multiply_next(acc, index++);
        if (cfg::in_turns && consumer == 0) meet_other();
    }

    // NOTE: both wait, so that neither comes twice where tiles have few k tiles.
    __device__ __forceinline__ void meet_other() const { named_barrier_sync(4, 256); }

    __device__ __forceinline__ void multiply_next(Sums& acc, int index) {
        mbarrier_wait(smem.ring.full(slot.stage), slot.phase);
        multiply_tile(acc, slot.stage, index);
        wgmma_wait<cfg::in_flight>();
        if (index >= cfg::in_flight) release(slot.stage >= cfg::in_flight ? slot.stage - cfg::in_flight : cfg::stages - 1);
        slot.advance();
    }

    // The tensor cores keep some 13 bits of a sum of 8-bit floats, so every few k tiles it is added to sums
    // that are kept in f32 outside of them (as DeepSeek's DeepGEMM does).
    __device__ __forceinline__ void multiply_promoted(Sums& acc, int k_tiles) {
        constexpr int every = cfg::promote > 0 ? cfg::promote : 1;
        acc.clear();
        Sums chunk;
        for (int index = 0; index < k_tiles; ++index) {
            mbarrier_wait(smem.ring.full(slot.stage), slot.phase);
            multiply_tile(chunk, slot.stage, index % every);
            chunk.finish();
            release(slot.stage);
            slot.advance();
            if (index % every == every - 1 || index == k_tiles - 1) acc.add(chunk);
        }
    }

    __device__ __forceinline__ void finish(Sums& acc, int k_tiles) {
        acc.finish();
        if (cfg::split_k * cfg::cluster_k > 1 && k_tiles == 0) acc.clear();
        if (cfg::in_flight == 1 && k_tiles > 0) release(slot.stage > 0 ? slot.stage - 1 : cfg::stages - 1);
    }

    __device__ __forceinline__ void multiply_tile(Sums& acc, int stage, int index) const {
        const unsigned long long base = static_cast<unsigned long long>(stage) * (Stages::stage_bytes / 16);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < cfg::k_steps; ++step)
#pragma unroll
            for (int block = 0; block < cfg::blocks; ++block)
                acc.multiply(block, x + base + x_offset(step, block), y + base + y_offset(step), step > 0 ? 1 : index);
        wgmma_commit();
    }
    static constexpr __device__ __forceinline__ unsigned x_offset(int step, int block) {
        return cfg::swap_ab ? TileB::step_offset(step) + TileB::extent_offset(block * 64)
                            : TileA::step_offset(step) + TileA::extent_offset(block * 64);
    }
    static constexpr __device__ __forceinline__ unsigned y_offset(int step) {
        return cfg::swap_ab ? TileA::step_offset(step) : TileB::step_offset(step);
    }

    // Tells every producer that fills this stage, here or in a neighbour. One warp speaks for the
    // warpgroup, whose wgmma complete as one.
    __device__ __forceinline__ void release(int stage) const {
        if (threadIdx.x / 32 % 4) return;
        const unsigned lane = threadIdx.x % 32;
        if constexpr (cfg::cluster == 1) {
            if (lane == 0) mbarrier_arrive(smem.ring.empty(stage));
        } else {
            if (lane < Neighbours::count)
                mbarrier_arrive_remote(cluster_address(smem.ring.empty(stage), neighbours.rank(lane)));
        }
    }
};
