// Producer: one lane that keeps the ring full, and a warp that fetches ahead of it.
#pragma once
#include "wgmma_ws/scheduler.cuh"
#include "wgmma_ws/stages.cuh"

// Brings the longer operand's part of the first k tiles of a block into the L2, one a lane, while the kernel
// before this one ends and whether or not it writes them.
__device__ __forceinline__ void prefetch(Scheduler scheduler, const TensorMap* map_a, const TensorMap* map_b) {
    const int lane = threadIdx.x % 32;
    Work work;
    if (lane >= cfg::prefetch || !scheduler.next(work)) return;
    if (lane >= work.k_tiles()) return;
    const int index = work.k_tile(lane);
    const Neighbours neighbours;
    if constexpr (cfg::prefetch_a)
        TileA::prefetch_share(map_a, work.m, index, work.batch, neighbours.column);
    else
        TileB::prefetch_share(map_b, work.n, index, work.batch, neighbours.row);
}

// Waits for the next multiple of BEAT clocks: producers that ask for the same lines together are served by one request to
// the L2. The counters of the multiprocessors of a GPC run in step.
__device__ __forceinline__ void await_beat() {
    constexpr unsigned period = cfg::beat > 0 ? cfg::beat : 1;
    if constexpr (cfg::beat > 0)
        for (const unsigned beat = unsigned(clock()) / period; unsigned(clock()) / period == beat;) {}
}

// NOTE: a stage is refilled when the consumers of all neighbours have emptied it, since their copies of it
// are written too.
__device__ __forceinline__ void produce(const SharedMemory& smem, Scheduler scheduler, const TensorMap* map_a,
                                        const TensorMap* map_b) {
    const Neighbours neighbours;
    const unsigned short row_mask = neighbours.row_mask(), column_mask = neighbours.column_mask();
    // What is multicast comes first: of what each block loads for itself, more is then served to neighbours of a GPC by one
    // request to the L2.
    constexpr bool b_first = cfg::cluster_m > 1 && cfg::cluster_n == 1;
    const Stages& ring = smem.ring;
    Place slot;
    for (Work work; scheduler.next(work);)
        for (int count = 0; count < work.k_tiles(); ++count) {
            const int index = work.k_tile(count);
            mbarrier_wait(ring.empty(slot.stage), slot.phase ^ 1);
            const unsigned full = ring.full(slot.stage);
            mbarrier_arrive_expect(full, Stages::stage_bytes);
            await_beat();
            const auto load_b = [&] {
                TileB::load_share<cfg::hint_b>(ring.tile_b(slot.stage), map_b, full, work.n, index, work.batch, neighbours.row, column_mask);
            };
            if constexpr (b_first) load_b();
            TileA::load_share<cfg::hint_a>(ring.tile_a(slot.stage), map_a, full, work.m, index, work.batch, neighbours.column, row_mask);
            if constexpr (!b_first) load_b();
            slot.advance();
        }
    // NOTE: a block must not leave while a neighbour may still write to its shared memory, be it an arrival.
    if constexpr (cfg::cluster > 1)
        for (int stage = 0; stage < cfg::stages; ++stage) {
            mbarrier_wait(ring.empty(slot.stage), slot.phase ^ 1);
            slot.advance();
        }
}
